"""Length-prefixed messages over an asyncio transport."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from serve_app.wire.data_plane import LENGTH, MOST_BYTES

Message = TypeVar("Message")


class Frames(asyncio.Protocol, Generic[Message]):
    """One end of a connection. What it cannot read closes it.

    Args:
        kinds: The union of the messages that the other end sends.
        received: Called with each of them. What it raises closes the connection.
        closed: Called once, when the connection has ended for whatever reason.
    """

    def __init__(
        self, kinds: Any, received: Callable[[Message], None], closed: Callable[[Exception], None]
    ) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kinds)
        self._encoder = msgspec.msgpack.Encoder()
        self._received = received
        self._closed = closed
        self._rest = bytearray()
        self._closing = False
        self.peer = ""
        """The address of the other end, for people to read."""
        self.fault: Exception | None = None
        """Why this end has closed the connection; None as long as it has not, or had been asked to."""
        self.most_bytes = MOST_BYTES
        """A longer frame is not read, and closes the connection."""
        self._transport: asyncio.Transport | None = None
        self.writable = True
        """False while what has been sent waits for the other end to read."""
        self.on_writable: Callable[[], None] = lambda: None
        self.on_connected: Callable[[], None] = lambda: None
        """Called when the other end can be reached, after the handshake of TLS."""

    def send(self, message: Any) -> None:
        """Send it, or do nothing once the connection has ended."""
        if self._transport is not None:
            data = self._encoder.encode(message)
            self._transport.write(LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        """End the connection when what has been sent is out. Nothing is received any more."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection now, whatever has been sent."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is none by its class
        self.peer = str(transport.get_extra_info("peername"))
        self.on_connected()

    def data_received(self, data: bytes) -> None:
        rest = self._rest
        rest += data
        start = 0
        try:
            while not self._closing and len(rest) - start >= LENGTH.size:
                (length,) = LENGTH.unpack_from(rest, start)
                if length > MOST_BYTES:
                    raise ConnectionError("the other end speaks another protocol")
                if length > self.most_bytes:
                    raise ConnectionError(
                        f"a frame of {length} bytes; at most {self.most_bytes} are read now"
                    )
                end = start + LENGTH.size + length
                if len(rest) < end:
                    break
                self._received(self._decoder.decode(memoryview(rest)[start + LENGTH.size : end]))
                start = end
        except Exception as error:
            self.fault = error
            assert self._transport is not None
            self._transport.abort()
        else:
            del rest[:start]

    def eof_received(self) -> None:
        """Asyncio calls this: the other end sends no more, and all that it has sent has been received.

        Nothing is left to say. Asyncio would close the connection by itself, but only once the other end has
        read what waits here, and it may never read again.
        """
        assert self._transport is not None
        self._transport.abort()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.on_writable()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._closed(self.fault or error or ConnectionError("the other end closed the connection"))
