"""One message per engine step, and its way to the tasks that wait for the pieces of their streams."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from benchmarks.transport.pieces import Consumer

_TOKENS = [15339]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, list[int], bytes]]).decode


def encode(pieces: Sequence[bytes]) -> bytes:
    """A step in which each stream got one token. Without any it is the end."""
    return _encode([(stream, _TOKENS, piece) for stream, piece in enumerate(pieces)])


class _Inbox:
    """What has come for one stream and was not taken yet."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, piece: bytes) -> None:
        self._pieces.append(piece)
        if self._waiter is not None:
            self._waiter.set_result(None)
            self._waiter = None

    async def relay(self, consumer: Consumer) -> None:
        """Wait for pieces, and pass on together what came together."""
        while True:
            if not self._pieces:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            pieces, self._pieces = self._pieces, []
            consumer.take(b"".join(pieces))


@asynccontextmanager
async def relays(consumers: Sequence[Consumer]) -> AsyncIterator[Callable[[bytes | memoryview], bool]]:
    """One task per stream. Yields what takes a message to them, and returns False for the end."""
    inboxes = [_Inbox() for _ in consumers]

    def deliver(message: bytes | memoryview) -> bool:
        entries = _decode(message)
        for stream, _, piece in entries:
            inboxes[stream].put(piece)
        return bool(entries)

    async with asyncio.TaskGroup() as tasks:
        pairs = zip(inboxes, consumers, strict=True)
        running = [tasks.create_task(inbox.relay(consumer)) for inbox, consumer in pairs]
        yield deliver
        await asyncio.sleep(0)  # the last pieces are taken
        for task in running:
            task.cancel()
