"""The notes of one request: which spans they become, and whether the trace is kept."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from serve_app.api import request_trace
from serve_app.api.engine_client import EngineReply, EngineRequest, Outcome
from serve_app.api.errors import ApiError
from serve_app.api.request_head import RequestTraces
from serve_app.api.request_trace import MOST_STAGES, SHOWN, RecordedStage, RequestTrace
from serve_app.api.trace import UNTRACED
from serve_app.settings.caller import ANYONE, Caller
from serve_app.wire import spans as names
from serve_app.wire.data_plane import TokenCounts
from serve_app.wire.spans import cold_start_root
from tests.api.server import Server
from tests.stub_engine import StubEngine, failing, frames
from tests.timing import Clock

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
PATH = "/v1/chat/completions"
BODY = b'{"model":"tide","messages":[{"role":"user","content":"secret"}],"max_tokens":7,"stream":true}'
FIRST, DONE = b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"
WITH_PARAMETERS = set(names.REQUEST_PARAMETERS.values())
SHOW = {"X-Tideserve-Trace": "1"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(100.0)
    monkeypatch.setattr(request_trace.time, "perf_counter", clock)
    return clock


def client(sampled: bool = True) -> list[tuple[bytes, bytes]]:
    parent = f"00-{TRACE_ID}-{SPAN_ID}-{int(sampled):02x}".encode()
    return [(b"traceparent", parent), (b"tracestate", b"a=1")]


def begun(ratio: float = 1.0, headers: Sequence[tuple[bytes, bytes]] = (), **more: Any) -> RequestTrace:
    trace = RequestTraces(ratio, **more).begin(PATH, headers, 100.0)
    assert trace is not None
    return trace


def asked(trace: RequestTrace, outcome: Outcome = "ok", **state: Any) -> EngineRequest:
    request = EngineRequest("chat_completions", BODY, "r-1", 100.0, True, trace=trace, **state)
    request.outcome = outcome
    trace.note_request(request, BODY)
    return request


def test_parent_based_sampling_follows_the_client_and_else_the_ratio() -> None:
    assert begun(0.0, client()).sampled
    assert not begun(1.0, client(sampled=False)).sampled
    assert begun(1.0).sampled
    assert not begun(0.0).sampled
    assert 60 < sum(begun(0.1).sampled for _ in range(1000)) < 140
    traces = RequestTraces(None)
    assert traces.begin(PATH, client(), 0.0) is None


def test_the_engine_gets_the_span_of_the_attempt_as_its_parent() -> None:
    trace = begun(1.0, client())
    first = trace.begin(names.ATTEMPT)
    second = trace.begin(names.ATTEMPT)
    assert isinstance(first, RecordedStage)
    assert isinstance(second, RecordedStage)

    sent = trace.for_engine(None)

    assert sent is not None
    assert sent.traceparent == f"00-{TRACE_ID}-{second.span_id}-01"
    assert sent.tracestate == "a=1"
    trace.finish()
    root, *stages = trace.spans()
    assert (root.trace_id, root.parent_id, root.kind) == (TRACE_ID, SPAN_ID, "SERVER")
    assert root.remote_parent
    assert {stage.parent_id for stage in stages} == {root.span_id}
    assert {span.tracestate for span in (root, *stages)} == {"a=1"}
    assert [stage.kind for stage in stages] == ["INTERNAL", "CLIENT", "CLIENT"]


def test_stages_have_their_own_times_events_and_ends(clock: Clock) -> None:
    trace = begun()
    clock.now = 100.1
    asked(trace, queued_s=2.0, ttft_s=2.5, counts=TokenCounts(3, 9))
    queue = trace.begin(names.QUEUE)
    queue.note_phase("imports")
    queue.note_phase("imports")
    clock.now = 102.1
    queue.note_phase("warm_up")
    queue.link(cold_start_root("r1"))
    queue.end("released")
    trace.begin(names.PICK, {names.REPLICA: "r1"}, since=100.1).end()  # it waited in the queue until now
    attempt = trace.begin(names.ATTEMPT)
    clock.now = 103.0
    attempt.end("answered")
    clock.now = 104.0
    attempt.end("lost", "too late")
    trace.note_status(200)
    trace.finish()

    spans = {span.name.split()[0]: span for span in trace.spans()}
    seconds = {name: (span.start - spans["POST"].start) / 1e9 for name, span in spans.items()}
    assert seconds == pytest.approx({"POST": 0, "receive": 0, "queue": 0.1, "pick": 2.1, "attempt": 2.1})
    assert (spans["attempt"].end - spans["attempt"].start) / 1e9 == pytest.approx(0.9)
    assert spans["attempt"].attributes == {names.OUTCOME: "answered"}
    assert [event.attributes[names.PHASE_NAME] for event in spans["queue"].events] == ["imports", "warm_up"]
    assert spans["queue"].links == [cold_start_root("r1")]
    root = spans["POST"]
    assert root.name == f"POST {PATH}"
    assert root.attributes == {
        names.METHOD: "POST",
        names.ROUTE: PATH,
        names.REQUEST_ID: "r-1",
        names.LANE: "standard",
        names.OPERATION: "chat",
        names.PROVIDER: "vllm",
        names.REQUEST_STREAM: True,
        "gen_ai.request.max_tokens": 7,
        names.STATUS_CODE: 200,
        names.OUTCOME: "ok",
        names.QUEUED_S: 2.0,
        names.FIRST_CHUNK_S: 2.5,
        names.INPUT_TOKENS: 9,
        names.CACHED_TOKENS: 3,
        names.KEPT: ["queued"],
    }


@pytest.mark.parametrize(
    ("stages", "status", "outcome", "ttft_s", "kept"),
    [
        ([], 200, "ok", 0.1, []),
        ([], 200, "ok", 0.3, ["late"]),
        ([], 200, "error", 0.1, ["failed"]),
        ([], 502, "error", None, ["failed"]),
        ([], 429, "rejected", None, []),
        ([], None, "abandoned", None, []),
        ([names.QUEUE], 200, "ok", 0.1, ["queued"]),
        ([names.BACKOFF, names.BACKOFF], 200, "ok", 0.1, ["retried"]),
        ([names.CONTINUATION], 200, "ok", 0.1, ["moved"]),
    ],
)
def test_unsampled_traces_are_kept_for_what_went_wrong(
    stages: list[str], status: int | None, outcome: Outcome, ttft_s: float | None, kept: list[str]
) -> None:
    exported: list[RequestTrace] = []
    traces = RequestTraces(0.0, export=exported.append)
    trace = traces.begin(PATH, (), 100.0)
    assert trace is not None
    asked(trace, outcome, ttft_s=ttft_s)
    trace.note_model("tide", 0.2)
    for name in stages:
        trace.begin(name).end()
    if status is not None:
        trace.note_status(status)
    traces.end(trace)

    assert trace.kept_because() == kept
    assert exported == ([trace] if kept else [])
    assert ("late" in kept) == trace.late


def test_background_requests_are_not_kept_for_their_queue() -> None:
    trace = begun(0.0)
    request = EngineRequest("chat_completions", BODY, "r", 100.0, False, caller=Caller("", "background"))
    trace.note_request(request, BODY)
    for name in (names.QUEUE, names.BACKOFF):
        trace.begin(name).end()

    assert trace.kept_because() == ["retried"]


def test_a_trace_has_a_bounded_number_of_stages() -> None:
    trace = begun()
    for _ in range(MOST_STAGES + 10):
        trace.begin(names.ATTEMPT).end()
    trace.finish()

    assert len(trace.spans()) == MOST_STAGES + 1
    assert trace.attributes[names.LEFT_OUT] == 11


def test_prompts_are_in_spans_only_if_a_setting_says_so() -> None:
    for record in (False, True):
        trace = begun(1.0, record_prompts=record)
        asked(trace)
        trace.finish()
        assert ("secret" in str(trace.spans())) == record


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"max_completion_tokens":5,"temperature":0.5}', {"max_tokens": 5, "temperature": 0.5}),
        (b'{"seed":9223372036854775807,"top_k":9223372036854775808}', {"seed": 2**63 - 1}),
        (b'{"n":"two","top_p":[1]}', {}),
        (b'{"n":' + b"[" * 5000 + b"]" * 5000 + b"}", {}),
    ],
)
def test_only_numbers_that_can_be_sent_are_parameters(body: bytes, sent: dict[str, float]) -> None:
    trace = begun()
    trace.note_request(EngineRequest("chat_completions", body, "r-1"), body)

    found = {name: value for name, value in trace.attributes.items() if name in WITH_PARAMETERS}
    assert found == {names.REQUEST_PARAMETERS[name]: value for name, value in sent.items()}


@pytest.mark.parametrize(
    ("caller", "said"),
    [
        (Caller("mail", "background"), {names.LANE: "background", names.KEY: "mail"}),
        (ANYONE, {names.LANE: "standard"}),
    ],
)
def test_root_names_lane_and_key(caller: Caller, said: dict[str, str]) -> None:
    trace = begun()
    trace.note_request(EngineRequest("chat_completions", BODY, "r-1", 100.0, True, caller=caller), BODY)

    assert {
        name: trace.attributes[name] for name in (names.LANE, names.KEY) if name in trace.attributes
    } == said


def test_untraced_requests_note_nothing() -> None:
    stage = UNTRACED.begin(names.QUEUE)
    stage.note_phase("imports")
    stage.end()

    assert not stage.recorded
    assert UNTRACED.comment() == b""
    assert UNTRACED.for_engine(None) is None


async def exchange(engine: StubEngine, headers: dict[str, str], body: bytes = BODY) -> tuple[int, bytes]:
    server = Server(chat=engine)
    async with server.http as http:
        reply = await http.post(PATH, content=body, headers=headers)
        return reply.status_code, reply.content


async def test_a_stream_begins_and_ends_with_the_trace_that_its_client_asks_for() -> None:
    _, plain = await exchange(StubEngine(frames(FIRST, DONE)), {})
    assert plain == FIRST + DONE

    _, shown = await exchange(StubEngine(frames(FIRST, DONE)), SHOW)
    begun, first, done, whole, rest = shown.split(b"\n\n")
    assert (first + b"\n\n", done + b"\n\n", rest) == (FIRST, DONE, b"")
    documents = [json.loads(comment.removeprefix(SHOWN)) for comment in (begun, whole)]
    assert [[span["name"] for span in each["spans"]] for each in documents] == [["receive"]] * 2
    assert {len(each["trace_id"]) for each in documents} == {32}


@pytest.mark.parametrize("headers", [{}, {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}])
async def test_error_bodies_name_the_trace_if_there_is_one(headers: dict[str, str]) -> None:
    traced = TRACE_ID if headers else None
    for engine, body in (
        (StubEngine(ApiError(503, "no")), BODY),
        (StubEngine(failing(OSError("gone"), FIRST)), BODY),
        (StubEngine(EngineReply(200)), b'{"model":"other"}'),
        (StubEngine(EngineReply(200)), b"no JSON"),
    ):
        _, sent = await exchange(engine, headers, body)
        event = sent.removeprefix(FIRST).removeprefix(b"event: error\ndata: ")
        error = json.loads(event.split(b"\n\n")[0])["error"]
        assert ("trace_id" in error, error.get("trace_id")) == (bool(headers), traced)
