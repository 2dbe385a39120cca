"""Killed replicas, killed engine cores, and a Ctrl-C that leaves nothing behind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.integration.cluster import Running, application, engine_settings
from tests.integration.sse import RawStream

MODEL = "twins"
ENGINE = "ray::ServeReplica:tideserve:Engine"
LONG = {"model": MODEL, "prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def app() -> Iterator[Running]:
    knobs = {MODEL: {"min_replicas": 2, "max_replicas": 2}}
    running = Running(application(engine_settings(MODEL), knobs=knobs))
    running.start()
    try:
        running.wait_ready(
            until=lambda status, body: status == 200 and body["models"][MODEL]["replicas"] == 2
        )
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.stop()


def both_up(running: Running) -> bool:
    status, body = running.ready()
    return status == 200 and body["models"][MODEL]["replicas"] == 2


def eventually(what: str, condition, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.2)


def test_a_stream_whose_replica_is_killed_ends_with_an_error_event(app: Running) -> None:
    """One of two replicas dies with a stream on each: one stream errs, the other runs to its end."""
    with (
        RawStream(app.port, "/v1/completions", LONG) as one,
        RawStream(app.port, "/v1/completions", LONG) as two,
    ):
        one.until(b"data: ")
        two.until(b"data: ")
        app.processes(ENGINE)[0].kill()
        ends = [stream.until(b"data: [DONE]\n\n") for stream in (one, two)]
    lost = [end for end in ends if b"event: error" in end]
    assert len(lost) == 1
    frame = lost[0].split(b"event: error\ndata: ")[1].split(b"\n\n")[0]
    assert json.loads(frame)["error"]["code"] == "replica_lost"
    # While the second replica is being replaced, the first one answers.
    with httpx.Client(base_url=app.url, timeout=60) as http:
        for _ in range(4):
            reply = http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 2})
            assert reply.status_code == 200, reply.text


def test_a_killed_replica_takes_its_engine_core_with_it_and_is_replaced(app: Running) -> None:
    eventually("two replicas again", lambda: both_up(app))
    eventually("two engine cores", lambda: len(app.processes("VLLM::EngineCore")) == 2)


def test_a_dead_engine_core_is_noticed_and_its_requests_go_elsewhere(app: Running) -> None:
    app.processes("VLLM::EngineCore")[0].kill()
    with httpx.Client(base_url=app.url, timeout=60) as http:
        for _ in range(6):
            reply = http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 2})
            assert reply.status_code == 200, reply.text
    eventually("the replica is replaced", lambda: len(app.processes("VLLM::EngineCore")) == 2)
    eventually("two replicas again", lambda: both_up(app))


def test_ctrl_c_leaves_no_process_behind(app: Running) -> None:
    started = app.descendants()
    assert len(started) > 5
    assert app.stop() == 0
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert "0 processes had to be killed" in app.log
