"""A data plane that listens on loopback, the ingress's own channel to it, and a raw caller."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from serve_app.api.engine_client import EngineRequest, Operation
from serve_app.engine.data_plane import DataPlane
from serve_app.ingress.engine_channel import EngineChannel, RelayedStream
from serve_app.wire.data_plane import LENGTH, Answer, FromEngine, FromIngress, Refusal
from tests.stub_engine import LIMIT_S, StubEngine


class Port:
    """A data plane that listens, and an ingress's channel to it."""

    def __init__(self, plane: DataPlane, channel: EngineChannel) -> None:
        self.plane = plane
        self.channel = channel

    def call(self, operation: Operation = "completions", body: bytes = b"{}") -> RelayedStream:
        return self.channel.call(EngineRequest(operation, body, "r-1"), body)

    async def answer(self) -> Answer:
        return await self.call().answer()


class FakeIngress:
    """A caller that speaks the protocol message by message, or anything else."""

    def __init__(self, plane: DataPlane) -> None:
        self._address = plane.address

    async def __aenter__(self) -> "FakeIngress":
        host, _, number = self._address.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(number))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    def send(self, *messages: FromIngress) -> None:
        for message in messages:
            data = msgspec.msgpack.encode(message)
            self.writer.write(LENGTH.pack(len(data)) + data)

    async def receive(self) -> FromEngine:
        (length,) = LENGTH.unpack(await self.reader.readexactly(LENGTH.size))
        return msgspec.msgpack.decode(await self.reader.readexactly(length), type=FromEngine)

    async def refusal(self) -> str:
        """The only message before the engine replica closes the connection; "" for none."""
        try:
            message = await self.receive()
        except (asyncio.IncompleteReadError, ConnectionError):
            return ""
        assert isinstance(message, Refusal)
        with suppress(ConnectionError):
            assert await self.reader.read() == b""
        return message.reason


@asynccontextmanager
async def listening(engine: StubEngine) -> AsyncIterator[Port]:
    plane = DataPlane(engine)
    await plane.start("127.0.0.1")
    channel = await EngineChannel.connect(plane.address, plane.token, LIMIT_S)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield Port(plane, channel)
    finally:
        channel.close()
        await plane.stop()
