import asyncio
import json
from typing import cast

import pytest

from benchmarks.serving_overhead.client import ChatConnection, LoadError

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire:
    """Stands where the transport is: keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        pass


def connected() -> tuple[ChatConnection, Wire]:
    connection, wire = ChatConnection(), Wire()
    connection.connection_made(cast(asyncio.Transport, wire))
    return connection, wire


def chunked(*frames: str) -> bytes:
    bodies = [f"data: {frame}\n\n".encode() for frame in frames]
    return b"".join(b"%x\r\n%s\r\n" % (len(body), body) for body in bodies) + b"0\r\n\r\n"


def reply(tokens: int) -> bytes:
    texts = [
        json.dumps({"choices": [{"delta": {"content": f"t{n}"}, "finish_reason": None}]})
        for n in range(tokens)
    ]
    usage = json.dumps({"choices": [], "usage": {"completion_tokens": tokens}})
    return HEAD + chunked(*texts, usage, "[DONE]")


async def asking(connection: ChatConnection, tokens: int) -> asyncio.Task[object]:
    task = asyncio.ensure_future(connection.ask(b"request", tokens))
    await asyncio.sleep(0)
    return cast("asyncio.Task[object]", task)


async def test_two_replies_on_one_connection_are_timed_one_after_the_other() -> None:
    connection, wire = connected()
    for _ in range(2):
        task = asyncio.ensure_future(connection.ask(b"request", 3))
        await asyncio.sleep(0)
        for byte in reply(3):
            connection.data_received(bytes([byte]))
        answered = await task
        assert answered.tokens == 3
        assert answered.arrivals == 3
        assert 0 < answered.longest_gap_s <= answered.itl_s * 2
        assert connection.reusable
    assert wire.written == b"requestrequest"


async def test_a_short_reply_is_an_error() -> None:
    connection, _ = connected()
    task = await asking(connection, 64)

    connection.data_received(reply(3))

    with pytest.raises(LoadError, match="3 completion tokens of 64"):
        await task


async def test_a_refusal_is_an_error_that_shows_its_body() -> None:
    connection, _ = connected()
    task = await asking(connection, 3)

    connection.data_received(b'HTTP/1.1 503 No\r\ncontent-length: 18\r\n\r\n{"error":"queued"}')

    with pytest.raises(LoadError, match=r"HTTP 503.*queued"):
        await task


async def test_a_lost_connection_says_how_far_the_reply_came() -> None:
    connection, _ = connected()
    task = await asking(connection, 3)

    connection.data_received(reply(3)[:-120])
    connection.connection_lost(None)

    with pytest.raises(LoadError, match="status 200"):
        await task
    assert not connection.reusable


async def test_a_server_that_closes_after_each_reply_is_not_asked_again() -> None:
    connection, _ = connected()
    task = await asking(connection, 3)

    connection.data_received(reply(3).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
    await task

    assert not connection.reusable
