"""Length-prefixed messages over an asyncio transport."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from serve_app.wire.data_plane import LENGTH, MOST_BYTES

Message = TypeVar("Message")


class Frames(asyncio.Protocol, Generic[Message]):
    """One end of a connection, which an unreadable frame closes.

    Args:
        kinds: The union of the other end's messages.
        received: Called with each message. An exception from it closes the connection.
        closed: Called once, when the connection has ended for any reason.
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
        """The address of the other end, for people."""
        self.fault: Exception | None = None
        """The error for which this end closed the connection; None without an error."""
        self.most_bytes = MOST_BYTES
        """A longer frame closes the connection."""
        self._transport: asyncio.Transport | None = None
        self.writable = True
        """False while sent data waits for the other end to read."""
        self.on_writable: Callable[[], None] = lambda: None
        self.on_connected: Callable[[], None] = lambda: None
        """Called when the connection is ready, after the TLS handshake."""

    def send(self, message: Any) -> None:
        """Send `message`. Does nothing once the connection has ended."""
        if self._transport is not None:
            data = self._encoder.encode(message)
            self._transport.write(LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        """End the connection once all sent data is out. Nothing more is received."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
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
        """Asyncio calls this when the other end sends no more, and all its data has been received.

        By default asyncio closes the connection only once the other end has read all data that waits here.
        The other end may never read again.
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
