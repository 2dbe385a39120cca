"""One open batch in the runner: its lines in flight, its answers to be written, and its pace."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from serve_app.batch.queue import LONGEST_LEASE_S, Answered, LeasedLine
from serve_app.batch.records import LineError
from serve_app.wire.batches import LineAnswer

_FIRST_LINES = 8
_MOST_BYTES = 64 << 20
"""The memory of one batch in the runner: the lines in flight, their answers, and answers to be written."""
_LEAST_PAUSE_S = 0.5
_MOST_PAUSE_S = 5.0
"""A line may wait for a minute. Others of its batch find out sooner whether there is room again."""


@dataclass(slots=True)
class BatchWork:
    """The state of one open batch. It can be lost: the store has all that counts."""

    in_flight: dict[int, LeasedLine] = field(default_factory=dict)
    """By number. A runner has their leases."""
    calls: set[asyncio.Task[None]] = field(default_factory=set)
    answered: dict[int, Answered] = field(default_factory=dict)
    """Final answers that are not written yet, by the number of the line."""
    answered_bytes: int = 0
    answered_since: float = 0.0
    """When the first of them came."""
    to_return: dict[int, float] = field(default_factory=dict)
    """Lines for another attempt, and when. Their leases still run."""
    mean_bytes: float = 0.0
    """The mean size of the bodies that were sent last."""
    mean_answer_bytes: float = 0.0
    """The mean size of the latest answers."""
    most: int = _FIRST_LINES
    """The most lines in flight. It is halved by refusals, and grows by an answer's worth with each answer."""
    paused_until: float = 0.0
    step: asyncio.Task[None] | None = None
    """The validation of the input file, or the join of the results."""
    trouble: str = ""
    """Why a store failed in the last step; "" if none did."""
    status: str = ""
    """Its last known status."""
    failures: int = 0
    """The failures of this batch alone, in a row, in this status."""
    fault: LineError | None = None
    """Why the batch must fail."""
    model: str = ""
    """The served model, once an ingress replica has named it; "" too if it serves no such model."""
    _faults: Counter[int] = field(default_factory=Counter)

    @property
    def in_step(self) -> bool:
        """Whether its step is not done."""
        return self.step is not None and not self.step.done()

    @property
    def fitting(self) -> int:
        """The lines in flight that fit into the batch's memory, at least one."""
        line_bytes = max(1.0, self.mean_bytes + self.mean_answer_bytes)
        return max(1, int((_MOST_BYTES - self.answered_bytes) / line_bytes))

    def note_status(self, status: str) -> None:
        """Note the status. A new one ends what failed before: another runner may have got further."""
        if status != self.status:
            self.status, self.failures, self.fault = status, 0, None

    def cancel_calls(self) -> list[asyncio.Task[None]]:
        """Cancel the calls to ingress replicas, and return them."""
        for call in self.calls:
            call.cancel()
        return list(self.calls)

    def holds(self, line: int) -> bool:
        """Whether the runner still has to do with a line, so that it must not be sent again."""
        return line in self.in_flight or line in self.to_return or line in self.answered

    def take(self, answer: LineAnswer, now: float) -> bool:
        """Take the answer to a line in flight. Return whether it is final."""
        line = self.in_flight.pop(answer.number)
        self.mean_answer_bytes += (len(answer.body) - self.mean_answer_bytes) / _FIRST_LINES
        retry = retry_of(answer, line.attempts, self._faults[answer.number])
        if retry is not None:
            self._send_again(line, retry, now)
            return False
        self._faults.pop(answer.number, None)
        if not self.answered:
            self.answered_since = now
        self.answered[line.line] = Answered(line, answer)
        self.answered_bytes += len(answer.body)
        self.most += 1
        return True

    def lose(self, lines: list[int], now: float) -> None:
        """Note that the connection to an ingress replica broke before it answered `lines`."""
        for number in lines:
            line = self.in_flight.pop(number)
            self._send_again(line, Retry(backoff_s(line.attempts)), now)

    def take_returned(self) -> dict[float, list[int]]:
        """Return the lines for another attempt by its time, and forget them."""
        by_time: dict[float, list[int]] = {}
        for line, at in self.to_return.items():
            by_time.setdefault(at, []).append(line)
        self.to_return = {}
        return by_time

    def _send_again(self, line: LeasedLine, retry: Retry, now: float) -> None:
        at = now + retry.after_s
        if retry.fault:
            self._faults[line.line] += 1
        elif now >= self.paused_until:  # one refusal of many at the same time
            self.most = max(1, min(self.most, len(self.in_flight) + 1) // 2)
            self.paused_until = now + max(_LEAST_PAUSE_S, min(retry.after_s, _MOST_PAUSE_S))
        self.to_return[line.line] = round(at, 1)  # few statements for many lines


_WINDOW_S = 300.0
"""The rate is measured over so many seconds."""
_LEAST_S = 20.0
"""A rate over a shorter time says nothing yet."""


class Rate:
    """The lines of one model that were answered per second, over the last five minutes with work."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._total = 0

    def add(self, lines: int) -> None:
        self._total += lines

    def note(self, now: float) -> None:
        """Note the time, every second while batches are open."""
        self._points.append((now, self._total))
        while now - self._points[0][0] > _WINDOW_S:
            self._points.popleft()

    @property
    def lines_per_s(self) -> float | None:
        """The rate; None before it is known."""
        if not self._points or (over_s := self._points[-1][0] - self._points[0][0]) < _LEAST_S:
            return None
        return (self._points[-1][1] - self._points[0][1]) / over_s


def late_s(due: Iterable[tuple[int, float]], lines_per_s: float | None, now: float) -> list[float]:
    """Return by how many seconds batches would miss their windows, of those that would.

    Without any answer in the time measured, the result is infinite. Without a known rate, no batch counts as
    late before its end.

    Args:
        due: For each batch, its lines without an answer and the end of its window, the earliest end first.
        lines_per_s: The rate of answers.
        now: Unix time, as the ends.
    """
    found, lines = [], 0
    for of_batch, end in due:
        lines += of_batch
        needed_s = 0.0
        if lines_per_s is not None:
            needed_s = lines / lines_per_s if lines_per_s > 0 else float("inf")
        if lines and now + needed_s > end:
            found.append(now + needed_s - end)
    return found


_REFUSED = (429, 503)
"""No replica, no memory or no place in the key's limits. Such a line may come again until the end of the
completion window."""
_LOST = "replicas_lost"
"""The code of a line whose replicas were lost one after another. The line may be the cause."""
_MOST_FAULTS = 3
"""Attempts of one line that end in a fault of the server. Then the fault is the answer."""
_FIRST_S = 0.5
_LONGEST_S = 60.0


class _Error(msgspec.Struct):
    code: str | None = None


class _Body(msgspec.Struct):
    error: _Error | None = None


_body = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt."""

    after_s: float
    fault: bool = False
    """Whether the attempt counts as a fault of the server, of which a line has a few."""


def retry_of(answer: LineAnswer, attempts: int, faults: int) -> Retry | None:
    """Return when to send a line again; None if `answer` is final.

    Args:
        answer: The answer to the last attempt.
        attempts: The attempts so far, the last one included.
        faults: The earlier attempts that ended in a fault of the server.
    """
    wait_s = min(max(backoff_s(attempts), answer.retry_after_s), LONGEST_LEASE_S)
    if answer.status in _REFUSED and _code(answer.body) != _LOST:
        return Retry(wait_s)
    if answer.status >= 500 and faults + 1 < _MOST_FAULTS:
        return Retry(wait_s, fault=True)
    return None


def backoff_s(attempts: int) -> float:
    """Return the wait before the next attempt: it doubles, from half a second to a minute."""
    return min(_FIRST_S * 2.0 ** min(max(attempts - 1, 0), 10), _LONGEST_S)


def _code(body: bytes) -> str | None:
    try:
        error = _body.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if error is None else error.code
