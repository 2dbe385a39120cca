"""One reply of the stub server: what is due when, and the record of what was done."""

import collections
import itertools
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from benchmarks.load_clients.stub_script import ERROR_FRAME, Frames, Request, Script, Served, comment
from loadtests.client.pacer import Pacer


class Wire(Protocol):
    """The connection that a reply is written to."""

    def answer(self, status: int, body: bytes, more: str = "") -> None:
        """A whole response; `more` are header lines."""

    def write(self, data: bytes) -> None:
        """Raw bytes of a response."""

    def close(self) -> None:
        """After what is written is sent."""


class Site:
    """What all connections share."""

    def __init__(
        self, pacer: Pacer, ttft_s: float, itl_s: float, tokens: int, record: Callable[[Served], object]
    ) -> None:
        self.pacer, self.ttft_s, self.itl_s, self.tokens, self.record = pacer, ttft_s, itl_s, tokens, record
        self.numbers = itertools.count()
        self.failed: collections.Counter[bytes] = collections.Counter()
        self.open: set[Wire] = set()

    def fails(self, body: bytes, script: Script) -> bool:
        """Whether this one is to fail; counts it."""
        self.failed[body] += script.fail is not None
        return script.fail is not None and (
            script.fail_times is None or self.failed[body] <= script.fail_times
        )


class Reply:
    """One completion, from its request's arrival to its record."""

    def __init__(self, wire: Wire, site: Site, request: Request, *, chat: bool, fails: bool) -> None:
        now, unix_ns = time.monotonic(), time.time_ns()
        self._wire, self._site, self._request, self._script = wire, site, request, request.stub
        self._fail = request.stub.fail if fails else None
        self._tokens = request.max_completion_tokens or request.max_tokens or site.tokens
        number = next(site.numbers)
        self._frames = Frames(request, number, unix_ns // 10**9, self._tokens, chat=chat)
        self._served = Served(number, request.text[:80], now, unix_ns)
        script = self._script
        first = site.ttft_s if script.ttft_s is None else script.ttft_s
        self._itl_s = site.itl_s if script.itl_s is None else script.itl_s
        self._first_s = now + script.comments_s + first

    def start(self) -> None:
        """Refuse at once, or set the times of what is to come."""
        if self._fail in ("429", "503"):
            self._served.status = int(self._fail)
            retry = f"Retry-After: {self._script.retry_after_s}\r\n"
            error = {"error": {"message": f"refused with {self._fail}", "code": int(self._fail)}}
            self._wire.answer(int(self._fail), msgspec.json.encode(error), retry)
            self.end(self._fail)
        elif not self._request.stream:
            self._site.pacer.at(self._first_s + (self._tokens - 1) * self._itl_s, self._whole)
        else:
            self._site.pacer.at(
                self._served.arrived_s if self._script.comments_s else self._first_s, self._step
            )

    def _whole(self) -> None:
        if not self._served.ended_s:
            self._served.status = 200
            self._wire.answer(200, self._frames.whole())
            self.end("done")

    def _step(self) -> None:
        """Write what is due, then wait for the next time."""
        served, script = self._served, self._script
        if served.ended_s:
            return
        comment_s = served.arrived_s + served.comments * script.comment_every_s
        if comment_s < served.arrived_s + script.comments_s:
            waited = served.comments * script.comment_every_s
            self._send(comment(self._request.model, script.comments_s - waited, waited))
            served.comments += 1
            next_s = comment_s + script.comment_every_s
            self._site.pacer.at(
                next_s if next_s < served.arrived_s + script.comments_s else self._first_s, self._step
            )
            return
        index = len(served.written_s)
        if self._fail is not None and index >= script.fail_after_tokens:
            self._break()
            return
        self._send(self._frames.token(index))
        served.written_s.append(time.monotonic())
        if index + 1 < self._tokens:
            self._site.pacer.at(self._first_s + (index + 1) * self._itl_s, self._step)
        else:
            self._send(self._frames.last(), last=True)
            self.end("done")

    def _break(self) -> None:
        if self._fail == "error_frame":
            self._send(ERROR_FRAME, last=True)
        elif self._fail == "cut":
            self._wire.close()
        self.end(str(self._fail))

    def _send(self, data: bytes, *, last: bool = False) -> None:
        head = b""
        if not self._served.status:
            self._served.status = 200
            head = (
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
        self._wire.write(b"%b%x\r\n%b\r\n%b" % (head, len(data), data, b"0\r\n\r\n" if last else b""))

    def end(self, outcome: str) -> None:
        """Record it, once."""
        if not self._served.ended_s:
            self._served.outcome, self._served.ended_s = outcome, time.monotonic()
            self._site.record(self._served)
