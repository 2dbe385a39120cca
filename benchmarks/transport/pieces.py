"""Pieces of streams, of which the reader can tell whether each is whole and in order."""

import time
from array import array

_HEAD = b'data: {"id":"chatcmpl-%08d","created":1790000000,"choices":[{"index":0,"delta":{"content":"'
_END = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}],"model":"tideserve-demo"}\n\n'
_STEP = len(_HEAD % 0)
_SENT, _CLOSE = _STEP + 10, _STEP + 29
PIECE_BYTES = _CLOSE + len(_END)


def head(stream: int) -> bytes:
    """The part of a piece that is the same in all steps."""
    return _HEAD % stream


def tail(step: int, sent_ns: int) -> bytes:
    """The part of a piece that is the same in all streams. `sent_ns` is of the monotonic clock."""
    return b"%010d%019d" % (step, sent_ns) + _END


class Consumer:
    """The end of one stream. `latencies`, nanoseconds from send to here, are shared by all consumers."""

    def __init__(self, stream: int, latencies: "array[int]") -> None:
        self.steps = 0
        self._head = head(stream)
        self._latencies = latencies
        self._rest = b""

    def take(self, data: bytes) -> None:
        """The next bytes, which may end within a piece. ValueError for a piece that is not the next one."""
        now = time.monotonic_ns()
        data = self._rest + data if self._rest else data
        at = 0
        while len(data) - at >= PIECE_BYTES:
            piece = data[at : at + PIECE_BYTES]
            whole = piece.startswith(self._head) and piece.endswith(_END)
            if not whole or int(piece[_STEP:_SENT]) != self.steps:
                raise ValueError(f"this is not step {self.steps} of {self._head!r}: {piece!r}")
            self._latencies.append(now - int(piece[_SENT:_CLOSE]))
            self.steps += 1
            at += PIECE_BYTES
        self._rest = data[at:]
