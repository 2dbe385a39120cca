"""An ingress replica's connections, one to each engine replica, and the calls on them."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

from serve_app.api.engine_client import EngineRequest
from serve_app.ingress.replica import Replica
from serve_app.wire.data_plane import (
    CREDIT_BYTES,
    GREETING_BYTES,
    MOST_BYTES,
    VERSION,
    Answer,
    Beat,
    Call,
    Cancel,
    Continuation,
    Credit,
    FromEngine,
    Hello,
    Piece,
    Refusal,
    Step,
)
from serve_app.wire.frames import Frames
from serve_app.wire.tls import client_tls

_CREDIT_STEP = CREDIT_BYTES // 4
_CONNECT_TIMEOUT_S = 3.0


class NeverBegunError(ConnectionError):
    """The replica was gone, or refused, before the request could reach its engine."""


class EngineChannel:
    """Carries calls to one engine replica. Use `connect`.

    Attributes:
        beat: The last heartbeat.
        on_beat: Called with each heartbeat.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.beat = Beat("")
        self.on_beat: Callable[[Beat], None] = lambda _: None
        self.lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Done when the connection has ended, with the reason."""
        self._met: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._frames: Frames[FromEngine] = Frames(FromEngine, self._take, self._end)
        # Another program may listen at the port of a replica that is gone.
        self._frames.most_bytes = GREETING_BYTES
        self._numbers = count()
        self._streams: dict[int, RelayedStream] = {}

    @classmethod
    async def connect(cls, address: str, token: str, timeout_s: float) -> EngineChannel:
        """Connect to the data plane at `address` (`host:port`), and show the replica's token.

        Raises:
            NeverBegunError: no program listens there, or another program than this replica.
        """
        channel = cls(address)
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                tls = client_tls(os.environ)
                await loop.create_connection(lambda: channel._frames, host.strip("[]"), int(port), ssl=tls)
                channel.send(Hello(VERSION, token))
                await channel._met
        except TimeoutError:
            channel.close()
            raise NeverBegunError(f"{address} does not answer within {timeout_s:g} s") from None
        except (OSError, ValueError) as error:
            raise NeverBegunError(f"{address}: {error}") from error
        return channel

    def call(
        self,
        request: EngineRequest,
        body: bytes,
        continuation: Continuation | None = None,
        expected_cached_tokens: int | None = None,
        lane_knob: float | None = None,
    ) -> RelayedStream:
        """Send `request` with `body`, and with the delivered tokens of a stream that continues here.

        The last two arguments are those of `Call`.

        Raises:
            NeverBegunError: the connection has ended.
        """
        if self.lost.done():
            raise NeverBegunError(f"{self.address}: {self.lost.result()}")
        number = next(self._numbers)
        stream = self._streams[number] = RelayedStream(self, number)
        self.send(request.message(number, body, continuation, expected_cached_tokens, lane_knob))
        return stream

    def send(self, message: Hello | Call | Credit | Cancel) -> None:
        """Send a message. Does nothing once the connection has ended."""
        self._frames.send(message)

    def forget(self, number: int) -> None:
        """Ignore further messages for a stream."""
        self._streams.pop(number, None)

    def close(
        self, reason: str = "this process closed it", loss: type[ConnectionError] = ConnectionError
    ) -> None:
        """End the connection and all its open streams, which lose the replica by a `loss`."""
        self._end(ConnectionError(f"{self.address}: {reason}"), loss)
        self._frames.close()

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, Step):
            streams = self._streams
            for piece in message.pieces:
                if (stream := streams.get(piece.stream)) is not None:
                    stream.take(piece)
        elif isinstance(message, Beat):
            self.beat = message
            if not self._met.done():
                self._met.set_result(None)
                self._frames.most_bytes = MOST_BYTES
            self.on_beat(message)
        elif isinstance(message, Answer):
            if (stream := self._streams.get(message.stream)) is not None:
                stream.put(message)
        else:
            assert isinstance(message, Refusal)
            raise NeverBegunError(message.reason)

    def _end(self, error: Exception, loss: type[ConnectionError] = ConnectionError) -> None:
        if self.lost.done():
            return
        self.lost.set_result(error)
        if not self._met.done():
            self._met.set_exception(NeverBegunError(str(error)))
            self._met.exception()  # perhaps nobody waits for it
        for stream in self._streams.values():
            stream.fail(loss(f"{self.address}: {error}"))
        self._streams.clear()


class RelayedStream:
    """One call on a channel, for one reader."""

    __slots__ = (
        "_arrived", "_channel", "_error", "_forwarded", "_number", "_over", "_take_now", "_waiter",
        "keep_alive",
    )  # fmt: skip

    def __init__(self, channel: EngineChannel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._arrived: deque[Answer | Piece] = deque()
        self._waiter: asyncio.Future[bool] | None = None
        self._error: Exception | None = None
        self._over = False
        self._forwarded = 0
        self._take_now: Callable[[Piece], bool] | None = None
        self.keep_alive: Callable[[asyncio.Future[bool]], Awaitable[Any]] | None = None
        """Awaited while the reader waits; it returns when the future is done. See `KeepAlive.wait`."""

    async def answer(self) -> Answer:
        """Return the first message of the answer. Raises ConnectionError if the replica is lost before."""
        first = await self._next()
        assert isinstance(first, Answer)
        self._over = not first.streamed
        return first

    async def wait_for_event(self) -> None:
        """Wait for the first event. Raises ConnectionError if the stream is lost, or ends, before."""
        first = await self._next()
        self._arrived.appendleft(first)
        if not isinstance(first, Piece) or not first.data:
            raise ConnectionError("the stream ended before its first event")

    async def pieces(self, take_now: Callable[[Piece], bool] | None = None) -> AsyncIterator[Piece]:
        """Yield the pieces of the stream. A piece counts as forwarded when the caller asks for the next.

        Args:
            take_now: Called with each piece, except the last, that arrives while the caller waits. If it
                returns True, it has forwarded the piece, which is then not yielded.

        Raises:
            ConnectionError: the replica is lost.
        """
        self._take_now = take_now
        while not self._over:
            piece = await self._next()
            if isinstance(piece, Answer):
                raise ConnectionError("the replica failed within the stream; its log says why")
            self._over = piece.last
            yield piece
            self._count(piece)

    def close(self) -> None:
        """End the call. The engine frees its sequences."""
        self._channel.forget(self._number)
        if not self._over and self._error is None:
            self._over = True
            self._channel.send(Cancel(self._number))

    def take(self, piece: Piece) -> None:
        """Receive a piece, and forward it at once if the reader waits. Runs for every token."""
        if self._waiter is None or self._take_now is None or piece.last or not self._take_now(piece):
            self.put(piece)
        else:
            self._count(piece)

    def put(self, part: Answer | Piece) -> None:
        """Queue a message for the reader.

        Pieces that wait for the reader are merged. So a busier process spends less time on each token.
        """
        before = self._arrived[-1] if self._arrived else None
        if isinstance(before, Piece) and isinstance(part, Piece):
            before.data += part.data
            before.tokens += part.tokens
            before.last, before.lost, before.counts = part.last, part.lost, part.counts
        else:
            self._arrived.append(part)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Note that the channel has ended. The reader still gets the messages that came before."""
        self._error = error
        self._wake()

    def _count(self, piece: Piece) -> None:
        """Give the engine replica credit for a forwarded piece."""
        self._forwarded += len(piece.data)
        if self._forwarded >= _CREDIT_STEP:
            self._channel.send(Credit(self._number, self._forwarded))
            self._forwarded = 0

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():  # done if its reader has been cancelled
            waiter.set_result(False)

    async def _next(self) -> Answer | Piece:
        while not self._arrived:
            if self._error is not None:
                raise self._error
            self._waiter = waiter = asyncio.get_running_loop().create_future()
            await (waiter if self.keep_alive is None else self.keep_alive(waiter))
        return self._arrived.popleft()


class EngineChannels:
    """Opens one channel to each replica, and keeps it."""

    def __init__(self) -> None:
        self._opening: dict[Replica, asyncio.Task[EngineChannel]] = {}

    async def to(self, replica: Replica) -> EngineChannel:
        """Return the channel to `replica`, which is opened if there is none.

        Raises:
            NeverBegunError: the replica cannot be reached, or refuses.
        """
        opening = self._opening.get(replica)
        if opening is None or (opening.done() and self.current(replica) is None):
            connecting = EngineChannel.connect(replica.address, replica.token, _CONNECT_TIMEOUT_S)
            opening = self._opening[replica] = asyncio.create_task(connecting)
        return await asyncio.shield(opening)  # other requests may wait for it too

    def current(self, replica: Replica) -> EngineChannel | None:
        """Return the channel to `replica`; None if there is none now."""
        opening = self._opening.get(replica)
        if opening is None or not opening.done() or opening.cancelled() or opening.exception():
            return None
        channel = opening.result()
        return None if channel.lost.done() else channel

    def close(self, replica: Replica, reason: str, loss: type[ConnectionError] = ConnectionError) -> None:
        """End the channel to `replica`. Its requests lose the replica by a `loss`.

        A channel that is being opened is closed once it is open. Cancelling it would also cancel the requests
        that wait for it, as if their clients had left.
        """
        opening = self._opening.pop(replica, None)
        if opening is not None:
            opening.add_done_callback(partial(_close_opened, reason, loss))

    def close_all(self) -> None:
        for replica in list(self._opening):
            self.close(replica, "this ingress replica ends")


def _close_opened(reason: str, loss: type[ConnectionError], opening: asyncio.Task[EngineChannel]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close(reason, loss)
