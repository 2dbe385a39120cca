"""Batches on two engines whose processes are killed: no line is lost, and none is answered twice."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import openai
import pytest

from serve_app.batch.records import OPEN, Batch, Endpoint
from tests import timing
from tests.batch.stored import Stored, body
from tests.integration.cluster import Running
from tests.integration.fleet import MODEL, with_knobs

LIMIT_S = 150.0
KILLED = ("BatchRunner", "Ingress", "Engine", "ServeController")
"""Killed in turn."""
OTHER_ENDPOINTS: dict[Endpoint, dict[str, Any]] = {
    "/v1/completions": {"model": MODEL, "prompt": "The sea", "max_tokens": 8, "ignore_eos": True},
    "/v1/responses": {"model": MODEL, "input": "Hello", "max_output_tokens": 8, "ignore_eos": True},
}
SERVER = "tideserve run"
"""With all its processes: the whole cluster."""


def line(number: int, model: str) -> dict[str, Any]:
    return {**body(number, model), "max_tokens": 96, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def running(fleet: Running) -> Running:
    change_knobs(fleet, min_replicas=2, max_replicas=2)
    return fleet


def change_knobs(fleet: Running, **knobs: int) -> None:
    """Change knobs, also for a fleet that is started again."""
    fleet.document = with_knobs(fleet, **knobs)
    fleet.deploy(fleet.document)
    fleet.wait_ready(both_ready)


def both_ready(status: int, ready: dict[str, Any]) -> bool:
    return status == 200 and ready["models"][MODEL].get("replicas") == 2


def store_of(server: Running) -> Stored:
    """The store of a server, in its folder."""
    return Stored(server.folder / "tideserve")


def wait_until(
    stored: Stored, batch: Batch, holds: Callable[[Batch], bool], limit_s: float = LIMIT_S
) -> Batch:
    found: Batch = timing.wait_until(lambda: stored.batch(batch), holds, batch.id, limit_s)
    return found


def texts(stored: Stored, batch: Batch) -> dict[str, str]:
    """The answers by `custom_id`, each of which must be there once."""
    output, errors = stored.results(batch)
    assert errors == {}
    return {
        name: each["response"]["body"]["choices"][0]["message"]["content"] for name, each in output.items()
    }


def kill(server: Running, role: str) -> None:
    """Kill a process with this role, or the whole server, which is started again."""
    if role == SERVER:
        server.end()
        server.start()
        server.wait_ready(both_ready)
        return
    title = f"ray::{role}" if role == "ServeController" else f"ray::ServeReplica:tideserve:{role}"
    # The last one is being replaced.
    timing.wait_until(lambda: server.processes(title), what=title, limit_s=LIMIT_S)[0].kill()


def test_official_client_runs_and_cancels_batches(running: Running) -> None:
    good = [
        {"custom_id": f"é{n}", "method": "POST", "url": "/v1/chat/completions", "body": line(n, MODEL)}
        for n in range(1, 11)
    ]
    good[9]["body"]["temperature"] = 3
    data = "\r\n".join(json.dumps(each) for each in good).encode()
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        file = client.files.create(file=("in.jsonl", data), purpose="batch")
        batch = create(client, file.id)
        bad = create(client, client.files.create(file=("in.jsonl", data + b"\n{"), purpose="batch").id)
        many = [{**good[0], "custom_id": str(n)} for n in range(2000)]
        long = "\n".join(json.dumps(each) for each in many).encode()
        cancelled = create(client, client.files.create(file=("in.jsonl", long), purpose="batch").id)
        client.batches.cancel(cancelled.id)
        others = {
            url: create(
                client,
                client.files.create(
                    file=(
                        "in.jsonl",
                        json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": body}).encode(),
                    ),
                    purpose="batch",
                ).id,
                url,
            )
            for url, body in OTHER_ENDPOINTS.items()
        }

        batch = wait_for_end(client, batch.id)
        bad = wait_for_end(client, bad.id)
        cancelled = wait_for_end(client, cancelled.id)
        output, errors = (
            [json.loads(each) for each in client.files.content(name or "").text.splitlines()]
            for name in (batch.output_file_id, batch.error_file_id)
        )
        listed = {each.id for each in client.batches.list()}
        ends = {url: wait_for_end(client, each.id) for url, each in others.items()}

    assert {
        url: (each.status, each.request_counts and each.request_counts.completed, each.usage.output_tokens)
        for url, each in ends.items()
        if each.usage is not None
    } == dict.fromkeys(OTHER_ENDPOINTS, ("completed", 1, 8))
    assert (batch.status, batch.model) == ("completed", MODEL)
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 10, "completed": 9, "failed": 1}
    assert sorted(each["custom_id"] for each in output) == sorted(f"é{n}" for n in range(1, 10))
    assert all(each["response"]["status_code"] == 200 for each in output)
    assert batch.usage is not None
    assert batch.usage.output_tokens == sum(
        each["response"]["body"]["usage"]["completion_tokens"] for each in output
    )
    [failed] = errors
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("é10", 400)
    assert failed["response"]["body"]["error"]["param"] == "temperature"
    assert bad.status == "failed"
    assert bad.errors is not None
    assert [(each.code, each.line) for each in bad.errors.data or []] == [("invalid_json_line", 11)]
    assert cancelled.status == "cancelled"
    assert listed >= {batch.id, bad.id, cancelled.id}


def create(client: openai.OpenAI, file_id: str, url: Endpoint = "/v1/chat/completions") -> openai.types.Batch:
    return client.batches.create(input_file_id=file_id, endpoint=url, completion_window="24h")


def wait_for_end(client: openai.OpenAI, batch_id: str) -> openai.types.Batch:
    found: openai.types.Batch = timing.wait_until(
        lambda: client.batches.retrieve(batch_id), lambda batch: batch.status not in OPEN, batch_id, LIMIT_S
    )
    return found


@pytest.mark.parametrize(
    ("lines", "in_flight", "killed"),
    [
        # So few lines in flight that processes are killed in the middle of a short batch.
        pytest.param(60, 4, KILLED, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
        pytest.param(2000, 32, (*KILLED, SERVER) * 2, marks=[pytest.mark.long, pytest.mark.timeout(7200)]),
    ],
    ids=["short", "long"],
)
def test_killed_processes_lose_no_line_and_repeat_none(
    running: Running, lines: int, in_flight: int, killed: Sequence[str]
) -> None:
    change_knobs(running, batch_concurrency=in_flight)
    stored, limit_s = store_of(running), LIMIT_S + lines
    calm = stored.add(lines, now=time.time(), line=line)
    wait_until(stored, calm, lambda batch: batch.status == "completed", limit_s)

    rough = stored.add(lines, now=time.time(), line=line)
    for number, role in enumerate(killed):
        answered = lines * (10 + 75 * number // len(killed)) // 100
        wait_until(stored, rough, lambda batch, least=answered: batch.completed >= least, limit_s)  # type: ignore[misc]
        assert stored.batch(rough).left, f"{role} is to be killed before the last answer"
        kill(running, role)

    done = wait_until(stored, rough, lambda batch: batch.status == "completed", limit_s)

    answers = texts(stored, rough)
    assert answers.keys() == {f"r{number}" for number in range(1, lines + 1)}
    assert answers == texts(stored, calm)
    assert (done.completed, done.failed) == (lines, 0)
    assert done.document()["usage"] == stored.batch(calm).document()["usage"]
