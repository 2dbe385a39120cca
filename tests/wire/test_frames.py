"""Length-prefixed messages, over sockets of both event loops."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from serve_app.wire.data_plane import LENGTH, Beat, Credit, FromEngine, Piece, Refusal, Step
from serve_app.wire.frames import Frames
from tests.stub_engine import LIMIT_S


class Taker:
    """Collects what comes, and why it ended."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.frames: Frames[FromEngine] = Frames(FromEngine, self.taken.append, self.ended.set_result)


async def exchange(write: Callable[[asyncio.StreamWriter], None]) -> tuple[list[Any], Exception]:
    """What one end takes, and why it ended, of what the other writes before it closes."""
    takers: list[Taker] = []

    def taker() -> asyncio.Protocol:
        takers.append(Taker())
        return takers[0].frames

    server = await asyncio.get_running_loop().create_server(taker, "127.0.0.1", 0)
    async with asyncio.timeout(LIMIT_S):
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        write(writer)
        await writer.drain()
        writer.write_eof()
        while not takers:
            await asyncio.sleep(0)
        ended = await takers[0].ended
    writer.close()
    server.close()
    return takers[0].taken, ended


def framed(message: Any) -> bytes:
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("piece", [1, 5, 1 << 20])
def test_messages_come_whole_and_in_order_however_they_are_cut(run: Callable[..., Any], piece: int) -> None:
    messages = [Beat(""), Step([]), Beat("x" * 300), Refusal("no")]
    data = b"".join(map(framed, messages))

    def write(writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(data), piece):
            writer.write(data[start : start + piece])

    taken, _ = run(exchange(write))

    assert taken == messages


_messages = st.one_of(
    st.builds(Beat, st.text(max_size=20)),
    st.builds(Step, st.lists(st.builds(Piece, st.integers(0, 9), st.binary(max_size=20)), max_size=3)),
    st.builds(Refusal, st.text(max_size=300)),
)


@given(st.lists(_messages, max_size=5), st.lists(st.integers(0, 2000), max_size=8))
def test_messages_do_not_depend_on_the_cuts(messages: list[Any], places: list[int]) -> None:
    data = b"".join(map(framed, messages))
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    taken: list[Any] = []
    frames: Frames[FromEngine] = Frames(FromEngine, taken.append, lambda _: None)

    for begin, end in pairwise(edges):
        frames.data_received(data[begin:end])

    assert taken == messages


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks another protocol"),
        (framed(Credit(1, 2)), "Invalid value"),
        (LENGTH.pack(3) + b"\xc1\xc1\xc1", "malformed"),
    ],
    ids=["another protocol", "a message for the other end", "no message at all"],
)
def test_what_cannot_be_read_ends_the_connection_and_says_why(data: bytes, why: str) -> None:
    taken, ended = asyncio.run(exchange(lambda writer: writer.write(data)))

    assert taken == []
    assert why in str(ended)


def test_later_versions_extra_fields_are_ignored() -> None:
    later = msgspec.msgpack.encode([*msgspec.to_builtins(Beat("")), "and more"])

    taken, _ = asyncio.run(exchange(lambda writer: writer.write(LENGTH.pack(len(later)) + later)))

    assert taken == [Beat("")]


def test_field_missing_from_an_earlier_version_has_its_default() -> None:
    earlier = msgspec.msgpack.encode([6, "its engine core has died"])

    taken, _ = asyncio.run(exchange(lambda writer: writer.write(LENGTH.pack(len(earlier)) + earlier)))

    assert taken == [Beat("its engine core has died", 0.0)]
