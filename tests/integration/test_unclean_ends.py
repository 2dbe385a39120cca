"""Killed replicas, killed engine cores, and a Ctrl-C that leaves nothing behind.

The last of the integration tests in their order: the application of the others ends here. Its chat model
gets a second replica first.
"""

from __future__ import annotations

import copy
import json
import time

import httpx
import psutil
import pytest

from tests.integration.cluster import Running
from tests.integration.conftest import CHAT
from tests.integration.sse import RawStream

CORES = 4  # of three models, one with two replicas
ENGINE = f"ray::ServeReplica:tideserve:Engine-{CHAT}"
LONG = {"model": CHAT, "prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def twins(app: Running) -> Running:
    document = copy.deepcopy(app.document)
    (ingress,) = document["applications"][0]["deployments"]
    ingress["user_config"]["autoscaling"] = {CHAT: {"min_replicas": 2, "max_replicas": 2}}
    app.deploy(document)
    eventually("two replicas", lambda: both_up(app))
    return app


def cores(running: Running) -> list[psutil.Process]:
    """The engine cores of the two replicas."""
    return [
        child
        for replica in running.processes(ENGINE)
        for child in replica.children()
        if child.is_running() and any("EngineCore" in part for part in child.cmdline())
    ]


def both_up(running: Running) -> bool:
    status, body = running.ready()
    return status == 200 and body["models"][CHAT]["replicas"] == 2


def eventually(what: str, condition, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.2)


def test_a_stream_whose_replica_is_killed_ends_with_an_error_event(twins: Running) -> None:
    """One of two replicas dies with a stream on each: one stream errs, the other runs to its end."""
    with (
        RawStream(twins.port, "/v1/completions", LONG) as one,
        RawStream(twins.port, "/v1/completions", LONG) as two,
    ):
        one.until(b"data: ")
        two.until(b"data: ")
        twins.processes(ENGINE)[0].kill()
        ends = [stream.until(b"data: [DONE]\n\n") for stream in (one, two)]
    lost = [end for end in ends if b"event: error" in end]
    assert len(lost) == 1
    frame = lost[0].split(b"event: error\ndata: ")[1].split(b"\n\n")[0]
    assert json.loads(frame)["error"]["code"] == "replica_lost"
    # While the second replica is being replaced, the first one answers.
    with httpx.Client(base_url=twins.url, timeout=60) as http:
        for _ in range(4):
            reply = http.post("/v1/completions", json={"model": CHAT, "prompt": "x", "max_tokens": 2})
            assert reply.status_code == 200, reply.text


def test_a_killed_replica_takes_its_engine_core_with_it_and_is_replaced(twins: Running) -> None:
    eventually("two replicas again", lambda: both_up(twins))
    eventually("no engine core too many", lambda: len(twins.processes("VLLM::EngineCore")) == CORES)


def test_a_dead_engine_core_is_noticed_and_its_requests_go_elsewhere(twins: Running) -> None:
    cores(twins)[0].kill()
    with httpx.Client(base_url=twins.url, timeout=60) as http:
        for _ in range(6):
            reply = http.post("/v1/completions", json={"model": CHAT, "prompt": "x", "max_tokens": 2})
            assert reply.status_code == 200, reply.text
    eventually("the replica is replaced", lambda: len(cores(twins)) == 2)
    eventually("two replicas again", lambda: both_up(twins))


def test_ctrl_c_leaves_no_process_behind(twins: Running) -> None:
    started = twins.descendants()
    assert len(started) > 5
    assert twins.stop() == 0
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert "0 processes had to be killed" in twins.log
