"""A model between zero and three replicas: its decisions, its knobs and its streams."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from serve_app.cli.main import main
from tests.integration.cluster import Running, application, engine_settings
from tests.integration.raising_policy import MARK
from tests.timing import wait_until

MODEL = "tide"
DEPLOYMENT = "Engine-tide"
ENGINES = "ray::ServeReplica:tideserve:Engine-tide"
INGRESS = "ray::ServeReplica:tideserve:Ingress"
KNOBS: dict[str, Any] = {
    "min_replicas": 0,
    "max_replicas": 3,
    "ttft_target_s": 5.0,
    "itl_target_s": 1.0,
    "queue_target_per_replica": 8,
    "headroom": 0,
    "downscale_delay_s": 600,
    "downscale_to_zero_delay_s": 600,
    "drain_move_after_s": 1,
    "keep_alive_interval_s": 1,
}
LONG_CONTEXT = {
    "max_model_len": 8192,
    "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
}
LORA = {"max_rank": 8, "max_loaded": 2, "max_cached": 4}
RESOURCES = '{"CPU": 2, "engine": 3}'
"""Two CPUs, which ingress and engines share, and room for three engines."""
WAIT_S = 120.0


def new_fleet(mark: str) -> Running:
    """Return the application. Its policy raises while the file `mark` exists."""
    place = {"cpus_per_replica": 0.3, "resources": {"engine": 1}}
    engine = engine_settings(MODEL, **place, **LONG_CONTEXT, lora=LORA)
    document = application(engine, knobs={MODEL: KNOBS}, ingress={"cpus_per_replica": 0.3})
    document["applications"][0]["autoscaling_policy"] = {
        "policy_function": "tests.integration.raising_policy:RaisingPolicy"
    }
    running = Running(document, environment={MARK: mark, "RAY_OVERRIDE_RESOURCES": RESOURCES})
    running.environment["XDG_CACHE_HOME"] = str(running.folder / "cache")  # of adapters
    # Without what vLLM keeps of a model's class, each first start imports vLLM once more, to look at it.
    running.environment["VLLM_CACHE_ROOT"] = str(Path.home() / ".cache/vllm")
    return running


def with_knobs(fleet: Running, ingress: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    """Return the fleet's file with other knobs of the model and of the ingress."""
    edited = copy.deepcopy(fleet.document)
    user_config = edited["applications"][0]["deployments"][0]["user_config"]
    user_config["autoscaling"][MODEL].update(changed)
    user_config["ingress"].update(ingress or {})
    return edited


def decisions(fleet: Running, after: int = 0) -> list[dict[str, Any]]:
    query = {"after": after, "limit": 1000}
    reply = httpx.get(f"{fleet.url}/autoscaling/decisions", params=query, timeout=10)
    found: list[dict[str, Any]] = reply.json()["decisions"]
    return found


def newest(fleet: Running) -> int:
    return max((record["seq"] for record in decisions(fleet)), default=0)


def changes(fleet: Running, after: int) -> list[tuple[int, int]]:
    steps = [(record["old_target"], record["new_target"]) for record in decisions(fleet, after)]
    return [step for step in steps if step[0] != step[1]]


def held_requests(fleet: Running) -> float:
    return float(decisions(fleet)[-1]["signals"]["held_requests"])


def status(fleet: Running) -> dict[str, Any]:
    body = httpx.get(f"{fleet.url}/autoscaling/decisions", timeout=10).json()["autoscaler"]
    found: dict[str, Any] = body["models"][DEPLOYMENT]
    return found


def until(look: Callable[[], Any], holds: Callable[[Any], bool], what: str) -> Any:
    return wait_until(look, holds, what, WAIT_S, every_s=0.2)


def until_ready(fleet: Running, replicas: int) -> None:
    until(
        lambda: status(fleet),
        lambda now: now["ready"] == replicas and now["target"] == replicas,
        f"{replicas} ready replicas",
    )


def knobs_in_force(fleet: Running) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{fleet.url}/autoscaling/knobs", timeout=10).json()["models"][MODEL]
    return found


def set_knobs(fleet: Running, *settings: str) -> None:
    """Set knobs with the command, and wait until they are in force."""
    assert main(["knobs", "set", MODEL, *settings, "--address", fleet.dashboard]) == 0
    given = dict(setting.split("=", 1) for setting in settings)
    values = {name: yaml.safe_load(text) for name, text in given.items() if text[0] not in "@[{"}
    until(lambda: knobs_in_force(fleet), lambda now: now | values == now, str(values))


def chat(words: str, max_tokens: int, stream: bool = True) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": max_tokens,
        "stream": stream,
        "ignore_eos": True,
    }


def streamed(fleet: Running, words: str, max_tokens: int) -> str:
    """Return the whole of one stream, keep-alives included, as text."""
    reply = httpx.post(f"{fleet.url}/v1/chat/completions", json=chat(words, max_tokens), timeout=WAIT_S)
    assert reply.status_code == 200, reply.text
    return reply.text


def is_whole(text: str) -> bool:
    """Return whether a stream came to its end without an error."""
    ended = text.endswith("data: [DONE]\n\n") and "event: error" not in text
    return ended and '"finish_reason":"length"' in text
