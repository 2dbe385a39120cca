"""`DataPlane` on loopback with the ingress's own channel; only the engine is a fake."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.api.engine_client import OPERATIONS, DeliveredTokens, EngineReply, EngineRequest, Operation
from serve_app.api.errors import ApiError
from serve_app.api.trace import TraceContext
from serve_app.engine import data_plane
from serve_app.engine.api_errors import lost_engine
from serve_app.engine.data_plane import DataPlane
from serve_app.ingress.engine_channel import EngineChannel, NeverBegunError, RelayedStream
from serve_app.settings.caller import Caller
from serve_app.settings.model_names import Adapter
from serve_app.wire.data_plane import (
    CREDIT_BYTES,
    ENGINE_DIED,
    ENGINE_KILLED,
    VERSION,
    Beat,
    Call,
    Continuation,
    Credit,
    Hello,
    Piece,
    Step,
    TokenCounts,
)
from tests.engine.data_plane_port import FakeIngress, listening
from tests.engine.stub_engine_core import StubEngineCore, front_end
from tests.stub_engine import LIMIT_S, MuteEngine, StubEngine, failing, stalled

FIRST, DONE = b"data: a\n\n", b"data: [DONE]\n\n"
COUNTS = TokenCounts(cached=16, input=40, output=5)
PROMPTS = TokenCounts(cached=16, input=40)
PIRATE = Adapter("pirate", "/lora/pirate")
TRACE = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")


async def read(stream: RelayedStream) -> bytes:
    assert (await stream.answer()).streamed
    return b"".join([piece.data async for piece in stream.pieces()])


async def first(stream: RelayedStream) -> bytes:
    await stream.answer()
    return (await anext(stream.pieces())).data


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_call_reaches_the_engine_with_all_its_fields(operation: Operation) -> None:
    engine = StubEngine(EngineReply(201, b'{"ok":1}', headers={"Retry-After": "2"}), counts=COUNTS)
    body = b"x" * (5 << 20)

    async with listening(engine) as port:
        arrived = time.perf_counter() - 1.25
        names: dict[str, Any] = {"alias": "gpt-4o", "adapter": PIRATE}
        request = EngineRequest(
            operation, body, "r-1", arrived, context=TRACE, queued_s=1.0, lost_s=0.25, **names
        )
        continuation = Continuation([[5, 6]], 17, 0.5, 1, sizes=[[2]])
        answer = await port.channel.call(request, body, continuation, 48, 0.02).answer()
        await port.answer()

    assert (answer.status, answer.body, answer.headers) == (201, b'{"ok":1}', {"Retry-After": "2"})
    assert answer.counts == COUNTS
    calls = engine.requests
    assert calls[0].waited_s >= 1.25
    assert [call.trace for call in calls] == [TRACE, None]
    got, plain = (call.message for call in calls)
    assert (got.operation, got.body, got.request_id, got.queued_s) == (operation, body, "r-1", 1.0)
    assert got.lost_s == 0.25
    assert got.continuation == continuation
    assert (got.expected_cached_tokens, got.lane_knob) == (48, 0.02)
    assert (plain.expected_cached_tokens, plain.continuation) == (None, None)
    assert (got.alias, plain.alias, plain.lane_knob) == ("gpt-4o", "", None)
    assert (got.adapter, plain.adapter) == (PIRATE, None)


async def test_stream_ends_with_its_token_counts() -> None:
    goes_on = asyncio.Event()

    async def generated() -> AsyncIterator[bytes]:
        yield FIRST
        await goes_on.wait()
        yield DONE

    engine = StubEngine(generated, counts=COUNTS)
    async with listening(engine) as port:
        stream = port.call()
        head = await stream.answer()
        assert (head.counts, head.prompts) == (None, PROMPTS)
        pieces = stream.pieces()
        assert (await anext(pieces)).data == FIRST
        assert (port.plane.open_requests, port.plane.open_background_requests) == (1, 0)
        goes_on.set()
        rest = [piece async for piece in pieces]

    assert b"".join(piece.data for piece in rest) == DONE
    assert [piece.counts for piece in rest] == [None] * (len(rest) - 1) + [COUNTS]


async def test_first_message_has_the_prompt_tokens_that_vllm_counts() -> None:
    core = StubEngineCore()
    core.cached_tokens = 2
    body = (
        b'{"model":"tide","prompt":["The sea and the tide","A harbour"],"n":2,"stream":true,"max_tokens":3}'
    )
    async with front_end(core) as (_, engine), listening(engine) as port:
        head = await port.call("completions", body).answer()

    lengths = [len(sent.prompt_token_ids) for sent in core.requests]
    assert len(lengths) == 4
    assert head.prompts is not None
    assert (head.prompts.input, head.prompts.prompt, head.prompts.output) == (sum(lengths), None, None)


async def test_failure_tells_what_was_computed_before() -> None:
    async with listening(StubEngine(ApiError(400, "no JSON object"), counts=COUNTS)) as port:
        answer = await port.answer()

    assert (answer.status, answer.counts, answer.prompts) == (400, COUNTS, None)


async def test_open_requests_of_the_lane_background_are_counted_apart() -> None:
    async with listening(MuteEngine()) as port:
        for lane in ("background", "standard", "background"):
            asked = EngineRequest("completions", b"{}", "r-1", caller=Caller("", lane, 1.0))
            port.channel.call(asked, b"{}")
        while port.plane.open_requests < 3:
            await asyncio.sleep(0)

        assert port.plane.open_background_requests == 2


@pytest.mark.parametrize("reason", [ENGINE_DIED, ENGINE_KILLED])
async def test_the_last_piece_says_that_the_engine_is_lost(reason: str) -> None:
    """However little the ingress has room for: what it goes on with elsewhere, it must not have passed on."""
    error, large = lost_engine(reason), b"data: " + b"x" * CREDIT_BYTES + b"\n\n"

    async def dying() -> AsyncIterator[bytes]:
        yield large
        engine.request.lost = reason
        yield error.frame()
        await asyncio.sleep(0.01)  # other steps go out
        yield DONE

    engine = StubEngine(dying)
    async with listening(engine) as port:
        stream = port.call()
        await stream.answer()
        pieces = stream.pieces()
        assert await anext(pieces) == Piece(0, large)
        assert await anext(pieces) == Piece(
            0, error.last_frames(), last=True, lost=reason, counts=TokenCounts()
        )


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (lost_engine(ENGINE_DIED), "engine_died"),
        (ApiError(429, "full", code="queue_full", headers={"A": "1"}), ""),
    ],
)
async def test_error_answer_says_whether_engine_is_lost(error: ApiError, lost: str) -> None:
    async with listening(StubEngine(error)) as port:
        answer = await port.answer()
        unknown = await port.call("shutdown").answer()  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert port.plane.open_requests == 0

    assert (answer.status, answer.body, answer.headers) == (error.status, error.body(), error.headers)
    assert (answer.lost, unknown.status) == (lost, 404)


async def test_the_pieces_of_one_step_are_one_message() -> None:
    step = asyncio.Event()

    async def two_steps() -> AsyncIterator[bytes]:
        yield FIRST
        await step.wait()
        yield DONE

    async with listening(StubEngine(two_steps)) as port, FakeIngress(port.plane) as ingress:
        ingress.send(Hello(VERSION, port.plane.token))
        ingress.send(*(Call(number, "completions", b"{}", "r-1", 0.0, 0.0) for number in range(50)))
        begun = 0
        while begun < 50:
            message = await ingress.receive()
            begun += len(message.pieces) if isinstance(message, Step) else 0
        step.set()
        while not isinstance(message := await ingress.receive(), Step):
            pass
        assert [piece.data for piece in message.pieces] == [DONE] * 50


@given(st.lists(st.lists(st.integers(1, 40_000), min_size=1, max_size=4), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_frames_of_one_output_travel_with_its_tokens(outputs: list[list[int]]) -> None:
    """However large they are: those sent without their tokens would be sent again after a loss."""
    delivered = DeliveredTokens()

    async def generated() -> AsyncIterator[bytes]:
        for token, sizes in enumerate(outputs):
            for number, size in enumerate(sizes):
                yield b"%d.%d %b\n\n" % (token, number, b"x" * size)
            delivered.note(0, [token])
            await asyncio.sleep(0)

    async def received() -> list[tuple[list[bytes], list[int]]]:
        async with listening(StubEngine(EngineReply(200, stream=generated(), delivered=delivered))) as port:
            stream = port.call()
            await stream.answer()
            return [
                (
                    [frame.split()[0] for frame in piece.data.split(b"\n\n")[:-1]],
                    [token for _, ids in piece.tokens for token in ids],
                )
                async for piece in stream.pieces()
            ]

    pieces = asyncio.run(received())

    for frames_of_piece, tokens in pieces:
        assert frames_of_piece == [
            b"%d.%d" % (token, n) for token in tokens for n in range(len(outputs[token]))
        ]
    assert [token for _, tokens in pieces for token in tokens] == list(range(len(outputs)))


async def test_frames_for_a_busy_reader_become_one_piece() -> None:
    delivered = DeliveredTokens()

    async def count() -> AsyncIterator[bytes]:
        for token in range(3):
            yield b"data: %d\n\n" % token
            delivered.note(0, [token])
            await asyncio.sleep(0.01)  # a step each

    async with listening(StubEngine(EngineReply(200, stream=count(), delivered=delivered))) as port:
        stream = port.call()
        await stream.answer()
        await asyncio.wait_for(asyncio.shield(port.plane.drain()), LIMIT_S)
        (piece,) = [piece async for piece in stream.pieces()]

    assert piece.data == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert [token for _, ids in piece.tokens for token in ids] == [0, 1, 2]
    assert piece.last


async def test_slow_reader_stops_only_its_own_stream() -> None:
    large = b"data: " + b"x" * CREDIT_BYTES + b"\n\n"
    made = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield large
            await asyncio.sleep(0)

    async with listening(StubEngine(endless)) as port:
        slow = port.call()
        await slow.answer()
        pieces = slow.pieces()
        assert (await anext(pieces)).data == large
        brisk = port.call()
        await brisk.answer()
        assert [len(piece.data) async for piece in limited(brisk, 20)] == [len(large)] * 20
        assert made < 20 + 6  # of the slow one: what it has read, and what it was credited
        assert (await anext(pieces)).data == large  # and it goes on


async def limited(stream: RelayedStream, count: int) -> AsyncIterator[object]:
    pieces = stream.pieces()
    for _ in range(count):
        yield await anext(pieces)


@pytest.mark.parametrize("failure", [RuntimeError("engine"), asyncio.CancelledError("engine")])
async def test_stream_failure_is_a_lost_replica_to_ingress(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StubEngine(failing(failure, FIRST))

    with caplog.at_level(logging.CRITICAL, "ray.serve"):
        async with listening(engine) as port:
            with pytest.raises(ConnectionError, match="failed within the stream"):
                await read(port.call())


@pytest.mark.parametrize("leaver", ["caller in prefill", "caller", "ingress"])
async def test_whoever_leaves_ends_the_generation(leaver: str) -> None:
    engine = MuteEngine() if leaver == "caller in prefill" else StubEngine(stalled(FIRST))

    async with listening(engine) as port:
        stream = port.call()
        await engine.entered.wait()
        if leaver != "caller in prefill":
            await first(stream)
        assert not engine.left.is_set()
        port.channel.close() if leaver == "ingress" else stream.close()
        await engine.left.wait()

    assert engine.cancelled


async def test_an_ingress_that_ends_its_direction_has_left() -> None:
    """Even if it reads nothing of what waits for it."""
    large = b"data: " + b"x" * CREDIT_BYTES + b"\n\n"
    made = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield large
            await asyncio.sleep(0)

    engine = StubEngine(endless)
    async with listening(engine) as port, FakeIngress(port.plane) as ingress:
        ingress.send(Hello(VERSION, port.plane.token), Call(0, "completions", b"{}", "r-1", 0.0, 0.0))
        ingress.send(Credit(0, 1 << 40))
        while made < 200:  # 13 MB, more than the sockets take
            await asyncio.sleep(0)
        ingress.writer.write_eof()
        await engine.left.wait()

    assert engine.cancelled


async def test_a_straggler_during_the_drain_is_served_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    engine = MuteEngine()

    async with listening(engine) as port:
        stream: RelayedStream | None = None

        async def look_again(seconds: float) -> None:
            nonlocal stream
            looks.append(port.plane.open_requests)
            if len(looks) == 3:
                stream = port.call()
                await engine.entered.wait()
            if len(looks) == 6:
                assert stream is not None
                stream.close()
                await engine.left.wait()
            await asyncio.sleep(0)

        monkeypatch.setattr(data_plane, "asyncio", SimpleNamespace(sleep=look_again))
        await port.plane.drain()

    assert looks[3:6] == [1] * 3
    assert looks[-5:] == [0] * 5


async def test_a_stopped_data_plane_ends_its_port_and_its_calls() -> None:
    engine = StubEngine(stalled(FIRST))
    async with listening(engine) as port:
        stream = port.call()
        await first(stream)
        await port.plane.stop()

        assert engine.left.is_set()
        with pytest.raises(ConnectionError):
            await anext(stream.pieces())
        with pytest.raises(NeverBegunError):
            await EngineChannel.connect(port.plane.address, port.plane.token, LIMIT_S)


async def test_heartbeats_carry_a_thousand_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_plane, "BEAT_S", 0.001)
    names = [f"{number:0200}" for number in range(1000)]
    plane = DataPlane(StubEngine(EngineReply(200)), lambda: Beat("", adapters=names, adapter_load_s=0.25))
    await plane.start("127.0.0.1")
    heard: asyncio.Queue[Beat] = asyncio.Queue()
    channel = await EngineChannel.connect(plane.address, plane.token, LIMIT_S)
    channel.on_beat = heard.put_nowait
    try:
        async with asyncio.timeout(LIMIT_S):
            beat = await heard.get()
        assert (beat.adapters, beat.adapter_load_s) == (names, 0.25)
    finally:
        channel.close()
        await plane.stop()


async def test_heartbeats_carry_the_trouble_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_plane, "BEAT_S", 0.001)
    trouble = ["", "its engine core has died"]
    plane = DataPlane(StubEngine(EngineReply(200)), lambda: Beat(trouble[0], 1.5))
    await plane.start("127.0.0.1")
    heard: asyncio.Queue[Beat] = asyncio.Queue()
    channel = await EngineChannel.connect(plane.address, plane.token, LIMIT_S)
    channel.on_beat = heard.put_nowait
    try:
        async with asyncio.timeout(LIMIT_S):
            assert await heard.get() == Beat("", 1.5)
            trouble.pop(0)
            while (await heard.get()).trouble != "its engine core has died":
                pass
        assert plane.open_requests == 0
    finally:
        channel.close()
        await plane.stop()
