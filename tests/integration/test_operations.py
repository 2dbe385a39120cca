"""Liveness, readiness, metrics and memory of a running application."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import psutil
from prometheus_client.parser import text_string_to_metric_families

from serve_app.settings.knobs import Knobs
from tests.integration.cluster import Running
from tests.integration.conftest import ALIAS, CHAT, EMBED, NARROW, SPEECH
from tests.integration.prometheus import samples, settled
from tests.timing import wait_until


def test_readiness_named_the_phase_while_the_first_engine_loaded(app: Running) -> None:
    # Before there is an ingress, HAProxy says so in words of its own.
    waiting = [seen for seen in app.seen if seen["status"] == 503 and "models" in seen]
    assert waiting
    phases = {model["phase"] for seen in waiting for model in seen["models"].values()}
    assert phases & {"imports", "weights_and_kv_cache", "waiting_for_a_node", "deploying"}
    assert all(not seen["ready"] for seen in waiting)


def test_readiness_says_how_long_each_phase_took(http: httpx.Client) -> None:
    body = http.get("/ready").json()
    assert body["ready"] is True
    assert set(body["models"]) == {CHAT, NARROW, EMBED, SPEECH}
    took = body["models"][CHAT]["startup_seconds"]
    assert list(took) == [
        "process",
        "imports",
        "configuration",
        "weights_and_kv_cache",
        "serving_layer",
        "warm_up",
        "data_plane",
    ]


def test_health_answers(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}


def test_metrics_name_the_nodes_that_answered(http: httpx.Client) -> None:
    lines = http.get("/metrics").text.splitlines()

    (up,) = [line for line in lines if line.startswith("llm_metrics_node_up{")]
    assert up.endswith(" 1")
    assert [line for line in lines if line.startswith("# lost node")] == []


def test_the_documentation_pages_are_there(http: httpx.Client) -> None:
    assert http.get("/docs").status_code == 200
    assert "/v1/chat/completions" in http.get("/openapi.json").json()["paths"]


def test_the_knobs_in_force_are_shown(http: httpx.Client) -> None:
    body = http.get("/autoscaling/knobs").json()
    assert set(body) == {"models", "ingress", "rejected"}
    assert set(body["models"]) == {CHAT, NARROW, EMBED, SPEECH}
    assert body["models"][NARROW] == Knobs().model_dump(mode="json")
    assert body["models"][CHAT] == Knobs(aliases=(ALIAS, "claude-*")).model_dump(mode="json")
    assert body["rejected"] == ""


def test_the_policy_says_where_every_model_stands_and_why(http: httpx.Client) -> None:
    """What it says is about two seconds behind: its own pace, the writing, and the reading."""
    up = dict.fromkeys((CHAT, NARROW, EMBED), 1)
    body = wait_until(
        lambda: http.get("/autoscaling/decisions").json(),
        lambda seen: {name: model["ready"] for name, model in by_model(seen).items()} == {**up, SPEECH: 0},
        "a status with all replicas",
    )
    models = by_model(body)
    assert body["autoscaler"]["policy_errors"] == 0
    assert {(name, model["mode"], model["wanted"], model["target"]) for name, model in models.items()} == {
        *((name, "act", 1, 1) for name in up),
        (SPEECH, "act", 0, 0),
    }
    numbers = [record["seq"] for record in body["decisions"]]
    assert numbers == sorted(numbers)
    assert {record["model"] for record in body["decisions"]} >= {CHAT, NARROW, EMBED}


def by_model(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {model["model"]: model for model in body["autoscaler"]["models"].values()}


def test_the_decisions_of_one_model_may_be_asked_for(http: httpx.Client) -> None:
    records = http.get("/autoscaling/decisions", params={"model": EMBED, "limit": 1}).json()["decisions"]
    assert [record["model"] for record in records] == [EMBED]
    later = http.get("/autoscaling/decisions", params={"model": EMBED, "after": records[0]["seq"]}).json()
    assert all(record["seq"] > records[0]["seq"] for record in later["decisions"])


def test_every_replicas_metrics_reach_prometheus(http: httpx.Client, client: openai.OpenAI) -> None:
    before = samples(http)
    for model in (CHAT, NARROW):
        client.completions.create(
            model=model, prompt="The tide", max_tokens=7, extra_body={"ignore_eos": True}
        )
    client.embeddings.create(model=EMBED, input="the sea")
    http.post("/v1/completions", json={"model": CHAT, "prompt": "x", "temperature": -1})
    after = settled(http, CHAT, NARROW)

    def gained(name: str, model: str) -> float:
        return after[name, model] - before.get((name, model), 0.0)

    for model in (CHAT, NARROW):
        assert gained("llm_completion_tokens_total", model) >= 7
        assert gained("llm_prompt_tokens_total", model) >= 1
        assert gained("llm_requests_total", model) >= 1
        for histogram in ("llm_ttft_seconds", "llm_inter_token_seconds", "llm_e2e_seconds"):
            assert gained(f"{histogram}_count", model) >= 1
            assert after[f"{histogram}_bucket", model] > 0
    assert gained("llm_errors_total", CHAT) >= 1
    for gauge in (
        "llm_queue_depth",
        "llm_running_requests",
        "llm_waiting_requests",
        "llm_running_tokens",
        "llm_waiting_tokens",
        "llm_kv_cache_usage_ratio",
    ):
        assert {model for name, model in after if name == gauge} == {CHAT, NARROW, EMBED}


def test_vllms_own_series_are_there_where_a_setting_asks(http: httpx.Client, client: openai.OpenAI) -> None:
    before = vllm_samples(http)
    endless = {"prompt": "The tide", "max_tokens": 1900, "stream": True, "extra_body": {"ignore_eos": True}}
    with ExitStack() as streams:
        for model in (CHAT, NARROW):
            stream = streams.enter_context(client.completions.create(model=model, **endless))
            next(stream)
        after = vllm_samples(http)
        tokens, running = (
            ("vllm:" + name, NARROW) for name in ("generation_tokens_total", "num_requests_running")
        )
        while after.get(running) != 1 or after.get(tokens, 0.0) < before.get(tokens, 0.0) + 7:
            next(stream)
            after = vllm_samples(http)

    assert {model for _, model in after} == {NARROW}
    gained = {name: value - before.get((name, model), 0.0) for (name, model), value in after.items()}
    assert gained["vllm:time_to_first_token_seconds_count"] >= 1
    assert after["vllm:kv_cache_usage_perc", NARROW] > 0


def vllm_samples(http: httpx.Client) -> dict[tuple[str, str], float]:
    """Each of vLLM's series by sample name and model, without the buckets of histograms."""
    return {
        (sample.name, sample.labels["model_name"]): sample.value
        for family in text_string_to_metric_families(http.get("/metrics").text)
        for sample in family.samples
        if sample.name.startswith("vllm:") and "le" not in sample.labels and "model_name" in sample.labels
    }


def test_a_replica_takes_at_most_two_gigabytes(app: Running) -> None:
    """Proportional set size: memory shared between processes is counted once."""
    for engine in app.processes("ray::ServeReplica:tideserve:Engine"):
        family = [engine, *engine.children(recursive=True)]
        used = sum(process.memory_full_info().pss for process in family)
        assert used <= 2 << 30, f"{used / 2**30:.2f} GiB in {[p.name() for p in family]}"
        assert isinstance(engine, psutil.Process)


def test_every_request_is_in_the_log_of_its_replica(app: Running, client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=NARROW, prompt="The tide", max_tokens=11, extra_body={"ignore_eos": True}
    )
    folder = app.folder / "ray" / "session_latest" / "logs" / "serve"
    request_id = answer.id.removeprefix("cmpl-")

    def logged() -> list[dict[str, Any]]:
        files = folder.glob(f"requests.tideserve.Engine-{NARROW}.*.jsonl")
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [line for line in lines if line["request_id"] == request_id]

    found = wait_until(logged, what=f"{request_id} in {folder}")
    assert [(line["outcome"], line["output_tokens"], line["model"]) for line in found] == [
        ("completed", 11, NARROW)
    ]


def test_the_command_of_helm_test_streams_an_answer(app: Running) -> None:
    command = [sys.executable, "-m", "serve_app.cli.main", "ask", "--url", app.url, "--timeout", "60"]
    env = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=90)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 10
    assert "TTFT" in done.stderr
