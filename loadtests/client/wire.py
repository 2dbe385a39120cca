"""What a client process tells the process that started it: length, a letter, and MessagePack."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from loadtests.record import Record, Timekeeping

Message = Record | Timekeeping | str | None
"""A record; the timekeeping at the end; why it failed; None: it is ready to begin."""

_HEAD = struct.Struct("<Ic")
_encode = msgspec.msgpack.Encoder().encode
_records = msgspec.msgpack.Decoder(Record)
_timekeepings = msgspec.msgpack.Decoder(Timekeeping)


def packed(message: Message) -> bytes:
    """One message in bytes."""
    match message:
        case Record():
            kind = b"r"
        case Timekeeping():
            kind = b"t"
        case str():
            kind = b"f"
        case None:
            kind = b"b"
    data = _encode(message)
    return _HEAD.pack(len(data), kind) + data


class Unpacker:
    """Messages out of bytes cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete now. msgspec.DecodeError for bytes that are none."""
        data = self._rest + data
        at = 0
        while len(data) - at >= _HEAD.size:
            size, kind = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + size
            if end > len(data):
                break
            yield _decoded(kind, data[at + _HEAD.size : end])
            at = end
        self._rest = data[at:]


def _decoded(kind: bytes, data: bytes) -> Message:
    match kind:
        case b"r":
            return _records.decode(data)
        case b"t":
            return _timekeepings.decode(data)
        case b"f":
            return msgspec.msgpack.decode(data, type=str)
        case b"b":
            return None
        case _:
            raise msgspec.DecodeError(f"a message of unknown kind {kind!r}")
