import json
import logging
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.ingress.stream_relay import first_frames, relay

END = b"\n\n"

lines = st.binary(max_size=12).map(lambda data: b"data: " + data.replace(b"\n", b"."))
frames = st.lists(lines, min_size=1, max_size=3).map(lambda parts: b"\n".join(parts) + END)


@st.composite
def cut_streams(draw: st.DrawFn, tail: st.SearchStrategy[bytes]) -> tuple[bytes, bytes, list[bytes]]:
    """Whole frames, an incomplete rest, and the two together cut into chunks anywhere."""
    whole = b"".join(draw(st.lists(frames, max_size=6)))
    rest = draw(tail)
    stream = whole + rest
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    return whole, rest, [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


async def passed(chunks: list[bytes]) -> list[bytes]:
    """What comes out, having checked at every step that it is all the whole frames there were."""
    out: list[bytes] = []
    received = b""

    async def source() -> AsyncIterator[bytes]:
        nonlocal received
        for chunk in chunks:
            assert b"".join(out) == received[: received.rfind(END) + len(END)] if END in received else not out
            received += chunk
            yield chunk

    chunked = source()
    first, rest = await first_frames(chunked)
    if first:
        async for piece in relay(first, rest, chunked, (), "tide"):
            out.append(piece)  # noqa: PERF401 the source looks at it meanwhile
    return out


@settings(deadline=None, max_examples=50)
@given(cut_streams(tail=st.just(b"")))
async def test_however_a_stream_is_cut_it_comes_out_whole_and_in_whole_frames(
    stream: tuple[bytes, bytes, list[bytes]],
) -> None:
    whole, _, chunks = stream

    out = await passed(chunks)

    assert b"".join(out) == whole
    assert all(piece.endswith(END) for piece in out)


@settings(deadline=None, max_examples=50)
@given(cut_streams(tail=st.tuples(frames, st.integers(1)).map(lambda cut: cut[0][: cut[1] % len(cut[0])])))
async def test_an_incomplete_frame_at_the_end_is_dropped(stream: tuple[bytes, bytes, list[bytes]]) -> None:
    whole, _, chunks = stream

    out = await passed(chunks)

    assert b"".join(out) == whole
    assert all(piece.endswith(END) for piece in out)


async def test_a_chunk_of_whole_frames_passes_as_it_is() -> None:
    assert await passed([b"data: a\n\ndata: b\n\n"]) == [b"data: a\n\ndata: b\n\n"]


@pytest.mark.parametrize("cut", range(1, 9))
async def test_a_frame_leaves_the_moment_its_last_byte_is_there(cut: int) -> None:
    frame = b"data: a\n\n"

    assert await passed([frame[:cut], frame[cut:] + b"data: b"]) == [frame]


async def loses(error: Exception, *chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    raise error


async def test_a_sender_lost_before_the_first_frame_is_its_callers_to_replace() -> None:
    with pytest.raises(ConnectionResetError):
        await first_frames(loses(ConnectionResetError(), b"data: a\n"))


async def test_a_sender_lost_within_a_stream_is_an_error_event_and_an_end_after_what_was_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The half frame is dropped: an event after it would be read as part of it."""
    source = loses(ConnectionResetError("gone"), b"data: a\n\ndata: b")
    first, rest = await first_frames(source)

    with caplog.at_level(logging.WARNING, "ray.serve"):
        out = [piece async for piece in relay(first, rest, source, (ConnectionError,), "org/tide")]

    event, done, end = out[1].split(b"\n\n")
    error = json.loads(event.removeprefix(b"event: error\ndata: "))["error"]
    assert out[0] == b"data: a\n\n"
    assert (error["code"], error["type"]) == ("replica_lost", "server_error")
    assert error["message"] == "Model 'org/tide': the engine replica was lost while it was generating."
    assert (done, end) == (b"data: [DONE]", b"")
    assert "org/tide" in caplog.text


async def test_a_fault_of_ours_is_not_taken_for_a_lost_replica() -> None:
    source = loses(KeyError("x"), b"data: a\n\n")
    pieces = relay(*await first_frames(source), source, (ConnectionError,), "tide")

    assert await anext(pieces) == b"data: a\n\n"
    with pytest.raises(KeyError):
        await anext(pieces)
