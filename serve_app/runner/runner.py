"""The runner of batches: validate, send, write, join. It knows neither Ray nor HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from math import isinf
from operator import itemgetter
from statistics import fmean
from typing import Any, TypeVar

from sqlalchemy.exc import DataError, SQLAlchemyError

from serve_app.batch.file_store import STORE_ERRORS, DamagedError
from serve_app.batch.queue import BatchQueue, LeasedLine
from serve_app.batch.records import Batch, LineError
from serve_app.cancellation import only_own_cancellation
from serve_app.database import TablesVersionError
from serve_app.runner.open_batch import BatchWork, Rate, backoff_s, late_s
from serve_app.wire.batches import BatchBacklog, BatchLine, LineAnswers
from serve_app.wire.own_clock import SteadyTime
from serve_app.wire.signals import MOST_COUNTED_BYTES

logger = logging.getLogger("ray.serve")

_T = TypeVar("_T")

Ask = Callable[[Batch, Sequence[BatchLine]], AsyncGenerator[LineAnswers]]
"""Sends lines of a batch to an ingress replica, and yields their answers."""

LEASE_S = 30.0
"""How long lines of a killed runner wait for the next one."""
_RENEW_S = 8.0
_TURN_S = 0.02
"""The shortest time between two turns. Each turn is a statement or two for the database."""
_BUSY_S = 0.5
_IDLE_S = 2.0
"""The longest time between two turns with and without open batches."""
_MOST_STEPS = 2
"""Checks of input files and joins at the same time. Each takes seconds, and holds the places of its lines."""
_CANCEL_S = 5.0
_WARN_S = 10.0
_WRITE_S = 2.0
_WRITE_LINES = 500
_WRITE_BYTES = 4 << 20
"""Answers are written after this time, in this number, or with so many bytes."""
_MOST_UNWRITTEN = 4
"""No lines are sent while so many times these cannot be written, as with a full disk."""
_MOST_FAULTS = 6
"""Attempts at what a batch itself prevents, as a damaged object does. They and the waits take 32 s."""


class Runner:
    """Works on all open batches of one application. Use it in one event loop.

    Args:
        queue: The lines of open batches.
        validate: Checks the input file of a batch, and adds its lines to the queue. It blocks.
        ask: Sends lines to an ingress replica.
        note_end: Gets the id of a batch that has ended, in a thread.
        count: Gets the model, the outcome and the number of lines whose answers count.
        clock: Unix time in seconds; by default one without steps.
    """

    def __init__(
        self,
        queue: BatchQueue,
        validate: Callable[[Batch], None],
        ask: Ask,
        note_end: Callable[[str], None] = lambda _: None,
        count: Callable[[str, str, int], None] = lambda *_: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._queue = queue
        self._validate = validate
        self._ask = ask
        self._note_end = note_end
        self._count = count
        self._clock = clock or SteadyTime()
        self._wall = clock or time.time
        self._work: defaultdict[str, BatchWork] = defaultdict(BatchWork)
        self._wanted: dict[str, int] = {}
        """The lines in flight that ingress replicas want, by model."""
        self._rates: defaultdict[str, Rate] = defaultdict(Rate)
        self._served: Counter[str] = Counter()
        """When each owner's last step began, as a number in the order of all steps."""
        self._running: list[Batch] = []
        self._renewed_at = self._warned_at = 0.0
        self._woken = asyncio.Event()
        self._trouble = self._found = ""
        """The trouble that was logged last, and that of the present turn."""

    async def run(self) -> None:
        """Work until cancelled. A store that is away is tried again."""
        try:
            while True:
                await self._pause(await self._try_turn())
        finally:
            await self._stop_calls(self._work.values())

    async def _try_turn(self) -> bool:
        """Return whether any batch is open, or may be."""
        busy = True
        try:
            with only_own_cancellation():
                busy = await self.turn()
        except Exception as error:  # of any store: batches go on once it is back
            self._found = _text(error)
        self._report(self._found)
        return busy

    async def _pause(self, busy: bool) -> None:
        await asyncio.sleep(_TURN_S + (_BUSY_S if self._found else 0.0))
        with suppress(TimeoutError):
            # Not `wait_for`, which in Python 3.11 loses a cancellation that comes with the event.
            async with asyncio.timeout(_BUSY_S if busy else _IDLE_S):
                await self._woken.wait()
        self._woken.clear()

    async def turn(self) -> bool:
        """Do what is due now. Return whether any batch is open."""
        self._found = ""
        # A step that ends after this has changed the row that is read now.
        in_step = {batch_id for batch_id, work in self._work.items() if work.in_step}
        batches = await asyncio.to_thread(self._queue.store.open_batches)
        now = self._clock()
        await self._renew(now)
        running, waiting = list[Batch](), list[Batch]()
        for batch in batches:
            work = self._work[batch.id]
            if batch.id in in_step:
                continue
            work.note_status(batch.status)
            open_ = min(now, self._wall()) < batch.expires_at  # both, since wall time set the window
            unended = open_ and (batch.left or work.in_flight) and not work.fault
            if batch.status == "in_progress" and unended:
                running.append(batch)
            elif not work.failures or now >= work.paused_until:
                waiting.append(batch)
        owners = [batch.owner for batch in batches if batch.id in in_step]
        for batch in self._in_turns(waiting, owners)[: max(0, _MOST_STEPS - len(in_step))]:
            work = self._work[batch.id]
            self._served[batch.owner] = max(self._served.values(), default=0) + 1
            if batch.status == "validating" and not work.fault:
                self._start(batch, work, asyncio.to_thread(self._validate, batch))
            else:
                await self._alone(batch, self._end(batch, work))
        for batch in running:
            await self._alone(batch, self._write(batch, now))
        await self._send(running, now)
        for gone in self._work.keys() - {batch.id for batch in batches} - in_step:
            self._work.pop(gone).cancel_calls()
        self._running = running
        troubles = [self._found, *(work.trouble for work in self._work.values())]
        self._found = next(filter(None, troubles), "")
        return bool(batches)

    # Sending

    async def _send(self, batches: Iterable[Batch], now: float) -> None:
        """Fill up the lines in flight: owners share a model equally, and the next deadline goes first."""
        owners: defaultdict[str, defaultdict[str, list[Batch]]] = defaultdict(lambda: defaultdict(list))
        for batch in sorted(batches, key=lambda batch: batch.expires_at):
            owners[self._model(batch) or batch.model or ""][batch.owner].append(batch)
        for model, by_owner in owners.items():
            wanted = self._wanted.get(model, 1)
            for mine in by_owner.values():
                await self._fill(mine, max(1, wanted // len(by_owner)) - self._in_flight(mine), now)
            for mine in by_owner.values():  # what other owners leave of their shares
                await self._fill(mine, wanted - sum(map(self._in_flight, by_owner.values())), now)

    def _in_flight(self, batches: Iterable[Batch]) -> int:
        return sum(len(self._work[batch.id].in_flight) for batch in batches)

    async def _fill(self, batches: Iterable[Batch], free: int, now: float) -> None:
        for batch in batches:
            if free > 0:
                free -= await self._alone(batch, self._send_some(batch, free, now)) or 0

    async def _send_some(self, batch: Batch, free: int, now: float) -> int:
        """Send up to `free` lines of a batch, and return how many."""
        work = self._work[batch.id]
        most = min(free, min(work.most, work.fitting) - len(work.in_flight))
        unwritten = max(len(work.answered) / _WRITE_LINES, work.answered_bytes / _WRITE_BYTES)
        if most <= 0 or now < work.paused_until or unwritten >= _MOST_UNWRITTEN:
            return 0
        leased = await asyncio.to_thread(self._queue.lease, batch.id, most, now, LEASE_S)
        lines = [line for line in leased if not work.holds(line.line)]
        if not lines:
            return 0
        requests = await asyncio.to_thread(self._queue.requests, batch, lines)
        work.failures = 0
        work.in_flight |= {line.line: line for line in lines}
        work.mean_bytes = fmean(len(request.body) for request in requests)
        call = asyncio.create_task(self._call(batch, work, lines, requests))
        work.calls.add(call)
        call.add_done_callback(work.calls.discard)
        return len(lines)

    async def _call(
        self, batch: Batch, work: BatchWork, lines: Sequence[LeasedLine], requests: Sequence[BatchLine]
    ) -> None:
        open_lines = {line.line for line in lines}
        try:
            with only_own_cancellation():
                async with aclosing(self._ask(batch, requests)) as parts:
                    async for part in parts:
                        work.model = part.model
                        self._wanted[work.model] = part.wanted
                        for answer in part.answers:
                            open_lines.discard(answer.number)
                            self._rates[work.model].add(work.take(answer, self._clock()))
                        if part.answers:
                            self._woken.set()
        except Exception as error:  # the ingress replica is gone: Ray has many errors for it
            self._warn_of_loss(error)
        finally:
            work.lose(sorted(open_lines), self._clock())
            self._woken.set()

    def _warn_of_loss(self, error: Exception) -> None:
        """Log a broken call. A lost ingress replica breaks many at the same time."""
        now = self._clock()
        if not 0 <= now - self._warned_at < _WARN_S:
            self._warned_at = now
            logger.warning("lines of batches are sent again, because a call to an ingress broke: %s", error)

    async def _renew(self, now: float) -> None:
        """Return the leases of lines for another attempt, and renew those in flight."""
        renew = not 0 <= now - self._renewed_at < _RENEW_S
        for batch_id, work in list(self._work.items()):
            for at, lines in work.take_returned().items():
                await asyncio.to_thread(self._queue.set_lease, batch_id, lines, at)
            if renew and (held := [*work.in_flight, *work.answered]):
                await asyncio.to_thread(self._queue.set_lease, batch_id, held, now + LEASE_S)
        if renew:
            self._renewed_at = now

    # Writing

    async def _write(self, batch: Batch, now: float, *, all_: bool = False) -> None:
        """Write answers if enough have come, or if the first has waited long enough."""
        work = self._work[batch.id]
        due = (
            len(work.answered) >= _WRITE_LINES
            or work.answered_bytes >= _WRITE_BYTES
            or not 0 <= now - work.answered_since < _WRITE_S
            or not work.in_flight
        )
        if work.answered and (all_ or due):
            written = list(work.answered.values())
            counted = await asyncio.to_thread(self._queue.finish, batch.id, written)
            for each in written:
                del work.answered[each.line.line]
                work.answered_bytes -= len(each.answer.body)
            work.answered_since = now
            for outcome, lines in counted.items():
                self._count(self._model(batch), outcome, lines)

    async def _end(self, batch: Batch, work: BatchWork) -> None:
        """Stop the calls of a batch, write its last answers, and begin to join its results."""
        await self._stop_calls([work])
        try:
            await self._write(batch, self._clock(), all_=True)
        except Exception as error:
            if not work.fault or _is_of_store(error):
                raise
            count = len(work.answered)
            logger.warning("batch %s: %d answers cannot be written: %s", batch.id, count, _text(error))
            work.answered.clear()  # they would keep the batch from its end
            work.answered_bytes = 0
        self._start(batch, work, asyncio.to_thread(self._join, batch, self._wall(), work.fault))

    def _join(self, batch: Batch, now: float, fault: LineError | None) -> None:
        if self._queue.end(batch, now, fault) is not None:
            self._note_end(batch.id)

    def _start(self, batch: Batch, work: BatchWork, step: Coroutine[Any, Any, None]) -> None:
        async def watched() -> None:
            try:
                with only_own_cancellation():
                    await step
                work.trouble, work.failures = "", 0
            except Exception as error:  # a later turn begins it anew
                work.trouble = self._fault_of_store(batch, error)
                if work.trouble:
                    await asyncio.sleep(_BUSY_S)
            self._woken.set()

        work.step = asyncio.create_task(watched())

    async def _alone(self, batch: Batch, work: Awaitable[_T]) -> _T | None:
        """Do something for one batch. Its failure must not stop other batches."""
        try:
            with only_own_cancellation():
                return await work
        except Exception as error:
            self._found = self._fault_of_store(batch, error) or self._found
            return None

    def _fault_of_store(self, batch: Batch, error: Exception) -> str:
        """Return a failure of a store, for which all batches wait. Note another one for its batch alone."""
        if _is_of_store(error):
            return _text(error)
        work = self._work[batch.id]
        work.failures += 1
        work.paused_until = self._clock() + backoff_s(work.failures)
        known = isinstance(error, DamagedError)
        logger.warning("batch %s, fault %d: %s", batch.id, work.failures, _text(error), exc_info=not known)
        if work.failures >= _MOST_FAULTS:
            message = f"{work.failures} attempts failed: {error if known else 'an error of the server'}."
            work.fault = LineError("batch_failed", message)
        return ""

    def _in_turns(self, batches: Iterable[Batch], in_step: Iterable[str]) -> list[Batch]:
        """Return each owner's first batch first, beginning with the owner whose last step is the oldest."""
        earlier = Counter(in_step)
        turns = []
        for batch in batches:
            turns.append((earlier[batch.owner], self._served[batch.owner], batch))
            earlier[batch.owner] += 1
        return [batch for *_, batch in sorted(turns, key=itemgetter(0, 1))]

    @staticmethod
    async def _stop_calls(works: Iterable[BatchWork]) -> None:
        """Cancel the calls, and wait until they have ended: each closes its stream to an ingress replica."""
        if calls := [call for work in works for call in work.cancel_calls()]:
            await asyncio.wait(calls, timeout=_CANCEL_S)

    def backlogs(self) -> dict[str, BatchBacklog]:
        """Return what is left to do, by model. Call it every second, because the calls measure the rates."""
        models: defaultdict[str, list[Batch]] = defaultdict(list)
        for batch in self._running:
            models[self._model(batch)].append(batch)
        for gone in self._rates.keys() - models.keys():
            del self._rates[gone]
        return {model: self._backlog(batches, self._rates[model]) for model, batches in models.items()}

    def _backlog(self, batches: Sequence[Batch], rate: Rate) -> BatchBacklog:
        now = self._clock()
        rate.note(now)
        due = sorted(((batch.left, batch.expires_at) for batch in batches), key=itemgetter(1))
        late = late_s(due, rate.lines_per_s, self._wall())
        return BatchBacklog(
            len(batches),
            sum(lines for lines, _ in due),
            sum(len(self._work[batch.id].in_flight) for batch in batches),
            int(
                sum(
                    batch.left * min(self._work[batch.id].mean_bytes, MOST_COUNTED_BYTES) for batch in batches
                )
            ),
            rate.lines_per_s,
            tuple(due),
            len(late),
            None if isinf(most := max(late, default=0.0)) else most,
        )

    def _model(self, batch: Batch) -> str:
        """Return the served model of a batch; "" until an ingress replica has named it."""
        return self._work[batch.id].model

    def _report(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            logger.error("batches wait, because their store cannot be used: %s", trouble)
        elif self._trouble and not trouble:
            logger.warning("batches go on: their store can be used again")
        self._trouble = trouble


def _is_of_store(error: Exception) -> bool:
    of_stores = (SQLAlchemyError, TablesVersionError, *STORE_ERRORS)
    return isinstance(error, of_stores) and not isinstance(error, DataError)


def _text(error: Exception) -> str:
    lines = str(error).splitlines() or [""]  # object stores add pages
    return f"{type(error).__name__}: {lines[0]}"
