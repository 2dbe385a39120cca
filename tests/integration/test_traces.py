"""Traces of a running application: a collector's receiver gets one whole trace of each request.

The tests share the application and run in order; each says in what state it leaves the fleet.
"""

import copy
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from serve_app.cli.main import main
from serve_app.wire import spans as names
from serve_app.wire.spans import batch_root, cold_start_root
from tests.batch.stored import Stored, body
from tests.integration.cluster import Running, application, engine_settings
from tests.otlp_receiver import Received, Receiver, coverage, grpc_receiver

MODEL = "tide"
REPLICA = "ray::ServeReplica:tideserve:Engine-tide"
PATH = "/v1/chat/completions"
KNOBS: dict[str, Any] = {
    "min_replicas": 0,
    "max_replicas": 2,
    "ttft_target_s": 60.0,
    "itl_target_s": 1.0,
    "downscale_delay_s": 0,
    "downscale_to_zero_delay_s": 600,
    "drain_move_after_s": 1,
    "keep_alive_interval_s": 1,
    "prefill_groups": False,  # a group of streams would go to one replica
}
SETTINGS: dict[str, Any] = {
    "max_ongoing_requests": 4,
    "max_model_len": 8192,
    "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
}

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def collector() -> Iterator[Receiver]:
    with grpc_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def fleet(collector: Receiver) -> Iterator[Running]:
    traces = {"enabled": True, "endpoint": collector.url, "sampling_ratio": 1.0}
    document = application(
        engine_settings(MODEL, **SETTINGS), knobs={MODEL: KNOBS}, telemetry={"traces": traces}
    )
    running = Running(document, environment={"RAY_OVERRIDE_RESOURCES": '{"CPU": 4}'})
    with running.serving():
        yield running


class Asked:
    """A streamed chat in a thread of its own, with a trace id that this test has chosen."""

    def __init__(self, fleet: Running, max_tokens: int = 16) -> None:
        self.trace_id = secrets.token_hex(16)
        self.text = ""
        self.status = 0
        self.begun = threading.Event()
        self._fleet, self._max_tokens = fleet, max_tokens
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Tell me about the sea."}],
            "max_tokens": self._max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"traceparent": f"00-{self.trace_id}-b7ad6b7169203331-01"}
        with httpx.stream("POST", self._fleet.url + PATH, json=body, headers=headers, timeout=300) as reply:
            self.status = reply.status_code
            for text in reply.iter_text():
                self.text += text
                if '"content"' in text:
                    self.begun.set()
        self.begun.set()

    def whole(self) -> str:
        self._thread.join(300)
        assert not self._thread.is_alive(), self.text[-300:]
        return self.text


def with_knobs(document: dict[str, Any], **knobs: Any) -> dict[str, Any]:
    edited = copy.deepcopy(document)
    edited["applications"][0]["deployments"][0]["user_config"]["autoscaling"][MODEL].update(knobs)
    return edited


def wait_for_replicas(fleet: Running, count: int) -> None:
    fleet.wait_ready(lambda _, body: body.get("models", {}).get(MODEL, {}).get("replicas") == count)


def whole_trace(collector: Receiver, asked: Asked, engines: int = 1) -> list[Received]:
    """The spans of a request, after the checks that hold of every trace."""

    def complete(spans: list[Received]) -> bool:
        by_vllm = [span for span in spans if span.name == "llm_request"]
        return (
            any(span.kind == 2 and span.name.startswith("POST") for span in spans) and len(by_vllm) >= engines
        )

    spans = collector.wait(complete, asked.trace_id)
    ids = {span.span_id: span for span in spans}
    assert len(ids) == len(spans)
    (root,) = (span for span in spans if span.parent_id not in ids)
    assert (root.name, root.parent_id) == (f"POST {PATH}" if asked.status else root.name, "b7ad6b7169203331")
    for span in spans:
        if span.name == "llm_request":
            assert ids[span.parent_id].name == names.ATTEMPT
            assert span.resource["service.name"] == "tideserve"
        elif span is not root:
            assert span.parent_id == root.span_id
            assert span.resource["tideserve.role"] == "ingress"
    assert coverage(spans, asked.trace_id) >= 0.95
    return spans


def ends(spans: list[Received]) -> list[str]:
    return [span.attributes[names.OUTCOME] for span in spans if span.name == names.ATTEMPT]


def root_of(spans: list[Received]) -> Received:
    return next(span for span in spans if span.name.startswith("POST"))


def test_cold_request_links_to_the_trace_of_the_start_it_caused(fleet: Running, collector: Receiver) -> None:
    asked = Asked(fleet)
    assert '"content"' in asked.whole()
    spans = whole_trace(collector, asked)

    assert [span.name for span in spans][1:] == ["receive", "queue", "pick", "attempt", "llm_request"]
    queue = spans[2]
    assert [event[1][names.PHASE_NAME] for event in queue.events]
    replica = spans[3].attributes[names.REPLICA]
    start = cold_start_root(replica)
    assert queue.links == [(start.trace_id, start.span_id)]
    assert root_of(spans).attributes[names.KEPT] == ["queued"]

    def started(found: list[Received]) -> bool:
        return {"cold start", "warm_up", "Load weights"} <= {span.name for span in found}

    of_start = collector.wait(started, start.trace_id)
    ids = {span.span_id: span for span in of_start}
    (root,) = (span for span in of_start if span.parent_id not in ids)
    assert (root.name, root.parent_id, root.attributes[names.REPLICA]) == ("cold start", "", replica)
    for name, phase in (("EngineCoreProc init", "weights_and_kv_cache"), ("llm_request", "warm_up")):
        span = next(span for span in of_start if span.name == name)
        while span.parent_id != root.span_id:
            span = ids[span.parent_id]
        assert span.name == phase

    def decided(found: list[Received]) -> bool:
        return any(span.name == names.DECISION and span.links for span in found)

    decisions = [span for span in collector.wait(decided) if span.name == names.DECISION]
    assert any((asked.trace_id, root_of(spans).span_id) in span.links for span in decisions)
    assert decisions[0].attributes["tideserve.decision.new_target"] == 1
    assert "tideserve.decision.term.queue" in decisions[0].attributes


def test_warm_request_has_pick_attempt_and_engine_times(fleet: Running, collector: Receiver) -> None:
    """Leaves two replicas."""
    fleet.deploy(with_knobs(fleet.document, min_replicas=2))
    wait_for_replicas(fleet, 2)
    asked = Asked(fleet)
    asked.whole()
    spans = whole_trace(collector, asked)

    assert [span.name for span in spans][1:] == ["receive", "pick", "attempt", "llm_request"]
    assert ends(spans) == ["answered"]
    root = root_of(spans).attributes
    assert root[names.OPERATION] == "chat"
    assert root[names.REQUEST_MODEL] == MODEL
    assert (root["gen_ai.request.max_tokens"], root[names.STATUS_CODE], root[names.OUTCOME]) == (
        16,
        200,
        "ok",
    )
    assert "gen_ai.latency.time_in_model_prefill" in spans[-1].attributes
    assert "sea" not in str([span.attributes for span in spans])


def test_traces_of_lines_link_to_the_span_of_their_batch(fleet: Running, collector: Receiver) -> None:
    stored = Stored(fleet.folder / "tideserve")
    batch = stored.add(
        2, model=MODEL, now=time.time(), line=lambda n, model: {**body(n, model), "max_tokens": 4}
    )
    root = batch_root(batch.id)

    (span,) = collector.wait(bool, root.trace_id)

    assert (span.name, span.span_id, span.parent_id) == ("batch", root.span_id, "")
    assert span.resource["tideserve.role"] == "runner"
    assert (span.attributes[names.OUTCOME], span.attributes[names.BATCH_LINES]) == ("completed", 2)

    def linked(found: list[Received]) -> list[Received]:
        return [each for each in found if (root.trace_id, root.span_id) in each.links]

    lines = linked(collector.wait(lambda spans: len(linked(spans)) == 2))
    assert [line.name for line in lines] == [f"POST {PATH}"] * 2
    assert len({line.trace_id for line in lines}) == 2
    assert lines[0].attributes[names.LANE] == "background"


@contextmanager
def streams_on_both(fleet: Running, max_tokens: int) -> Iterator[list[Asked]]:
    asked = [Asked(fleet, max_tokens) for _ in range(4)]
    for each in asked:
        assert each.begun.wait(120)
    yield asked
    for each in asked:
        each.whole()


def continued(asked: list[Asked]) -> Asked | None:
    return next((each for each in asked if "continued on another replica" in each.text), None)


def test_a_stream_whose_replica_is_killed_is_one_trace(fleet: Running, collector: Receiver) -> None:
    """Leaves two replicas."""
    with streams_on_both(fleet, 800) as asked:
        fleet.processes(REPLICA)[0].kill()
    lost = continued(asked)
    assert lost is not None
    spans = whole_trace(collector, lost)

    assert (ends(spans)[0], ends(spans)[-1]) == ("lost", "answered")  # Ray lists a dead replica for seconds
    (continuation,) = (span for span in spans if span.name == names.CONTINUATION)
    assert continuation.attributes[names.MOVES] == 1
    assert continuation.attributes[names.DELIVERED] > 0
    assert "moved" in root_of(spans).attributes[names.KEPT]
    wait_for_replicas(fleet, 2)


def test_ask_draws_the_trace_of_its_own_request(fleet: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "--trace", "--max-tokens", "8", "--url", fleet.url]) == 0

    lines = capsys.readouterr().err.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("trace "))
    assert [line.split()[0] for line in lines[first + 1 :]] == [
        "receive", "pick", "attempt", "engine", "prefill", "decode",
    ]  # fmt: skip
    assert all(re.search(r"\|.*=.*\|", line) for line in lines[first + 1 :])
