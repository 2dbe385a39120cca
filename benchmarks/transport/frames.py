"""Candidate: an asyncio protocol with length-prefixed frames, one frame per step."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast

from benchmarks.transport.pieces import Consumer
from benchmarks.transport.steps import encode, relays

_LENGTH_BYTES = 4


class _Sender(asyncio.Protocol):
    def __init__(self) -> None:
        self.connected: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        self.room = asyncio.Event()
        self.room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connected.set_result(cast(asyncio.Transport, transport))  # uvloop's are not its subclasses

    def pause_writing(self) -> None:
        self.room.clear()

    def resume_writing(self) -> None:
        self.room.set()


async def send(streams: int, steps: AsyncIterator[list[bytes]], listening: Callable[[int], None]) -> None:
    """The engine's end; `listening` gets the port."""
    sender = _Sender()
    server = await asyncio.get_running_loop().create_server(lambda: sender, "127.0.0.1")
    listening(server.sockets[0].getsockname()[1])
    transport = await sender.connected
    async for pieces in steps:
        message = encode(pieces)
        transport.writelines([len(message).to_bytes(_LENGTH_BYTES), message])
        await sender.room.wait()
    server.close()


class _Receiver(asyncio.Protocol):
    def __init__(self, deliver: Callable[[memoryview], bool]) -> None:
        self._deliver = deliver
        self._rest = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        view, at = memoryview(data), 0
        while (start := at + _LENGTH_BYTES) <= len(data):
            stop = start + int.from_bytes(view[at:start])
            if stop > len(data):
                break
            if not self._deliver(view[start:stop]):
                self.ended.set_result(None)
            at = stop
        self._rest = data[at:]


async def receive(port: int, consumers: Sequence[Consumer]) -> None:
    """The ingress' end, until the empty step has come."""
    async with relays(consumers) as deliver:
        create = asyncio.get_running_loop().create_connection
        transport, receiver = await create(lambda: _Receiver(deliver), "127.0.0.1", port)
        await receiver.ended
        transport.close()
