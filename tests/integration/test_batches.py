"""Batches on a real cluster whose processes are killed: no line is lost, and none is answered twice."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from serve_app.batch.records import Batch
from tests.batch.stored import Stored, body
from tests.integration.cluster import Running, application, engine_settings

LINES = 300
LIMIT_S = 150.0


def line(number: int, model: str) -> dict[str, Any]:
    return {**body(number, model), "max_tokens": 48, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    document = application(
        engine_settings("tide", max_num_seqs=8),
        knobs={"tide": {"min_replicas": 2, "max_replicas": 2}},
        ingress_knobs={"min_replicas": 1, "max_replicas": 1},
    )
    server = Running(document)
    with server.serving(both_ready):
        yield server


def both_ready(status: int, ready: dict[str, Any]) -> bool:
    return status == 200 and ready["models"]["tide"].get("replicas") == 2


def store_of(server: Running) -> Stored:
    """The store of a server, in its folder."""
    return Stored(server.folder / "tideserve")


def wait_until(stored: Stored, batch: Batch, holds: Callable[[Batch], bool]) -> Batch:
    deadline = time.monotonic() + LIMIT_S
    while not holds(found := stored.batch(batch)):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def texts(stored: Stored, batch: Batch) -> dict[str, str]:
    """The answers by `custom_id`, each of which must be there once."""
    output, errors = stored.results(batch)
    assert errors == {}
    return {
        name: each["response"]["body"]["choices"][0]["message"]["content"] for name, each in output.items()
    }


def kill(server: Running, title: str) -> None:
    process = next(iter(server.processes(title)))
    process.kill()


def test_killed_processes_lose_no_line_and_repeat_none(running: Running) -> None:
    stored = store_of(running)
    calm = stored.add(LINES, now=time.time(), line=line)
    wait_until(stored, calm, lambda batch: batch.status == "completed")

    rough = stored.add(LINES, now=time.time(), line=line)
    for percent, title in (
        (10, "ray::ServeReplica:tideserve:BatchRunner"),
        (25, "ray::ServeReplica:tideserve:Ingress"),
        (40, "ray::ServeReplica:tideserve:Engine"),
        (55, "ray::ServeController"),
    ):
        wait_until(stored, rough, lambda batch, part=percent: 100 * batch.completed >= part * LINES)  # type: ignore[misc]
        kill(running, title)
    wait_until(stored, rough, lambda batch: 100 * batch.completed >= 70 * LINES)
    running.end()
    running.start()
    running.wait_ready(both_ready)

    done = wait_until(stored, rough, lambda batch: batch.status == "completed")

    answers = texts(stored, rough)
    assert answers.keys() == {f"r{number}" for number in range(1, LINES + 1)}
    assert answers == texts(stored, calm)
    assert (done.completed, done.failed) == (LINES, 0)
    assert json.dumps(done.document()["usage"]) == json.dumps(stored.batch(calm).document()["usage"])
