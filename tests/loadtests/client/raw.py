"""A server that sends exactly the bytes a test gives it, cut as the test cuts them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

Answer = Callable[["Asked"], Awaitable[None]]


@dataclass
class Asked:
    """One request, and the connection to answer on."""

    head: bytes
    body: bytes
    writer: asyncio.StreamWriter

    async def send(self, *parts: bytes) -> None:
        """Each part in a segment of its own."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(0.002)


@dataclass
class Raw:
    answer: Answer
    url: str = ""
    connections: int = 0
    asked: list[Asked] = field(default_factory=list)
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.serving[task] = writer
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                [size] = [
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                ]
                asked = Asked(head, await reader.readexactly(size), writer)
                self.asked.append(asked)
                await self.answer(asked)
        writer.close()


@contextlib.asynccontextmanager
async def raw_server(answer: Answer) -> AsyncIterator[Raw]:
    raw = Raw(answer)
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0, limit=2**24)
    raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield raw
    finally:
        server.close()
        for writer in raw.serving.values():
            writer.transport.abort()
        await asyncio.gather(*raw.serving)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def piece(text: bytes = b" a") -> bytes:
    return b'data: {"id":"1","choices":[{"index":0,"text":"%b"}]}\n\n' % text


DONE = b"data: [DONE]\n\n"
