from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.ingress.frames import whole_frames

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

    async for piece in whole_frames(source()):
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


async def test_what_was_whole_is_out_before_the_sender_is_lost() -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"data: a\n\ndata: b"
        raise ConnectionResetError

    pieces = whole_frames(source())

    assert await anext(pieces) == b"data: a\n\n"
    with pytest.raises(ConnectionResetError):
        await anext(pieces)
