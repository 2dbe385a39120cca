"""Runners over SQLite and a folder. Only the ingress is a fake, which answers as each test says."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from serve_app.batch.queue import Answered
from serve_app.batch.records import Batch
from serve_app.batch.tables import BATCHES
from serve_app.runner.runner import LEASE_S, Runner
from serve_app.wire.batches import BatchLine, LineAnswer, LineAnswers
from tests.batch.stored import NOW, Stored

LIMIT_S = 60.0


def ok(line: BatchLine) -> LineAnswer:
    """An answer that names its request."""
    text = json.loads(line.body)["messages"][0]["content"]
    return LineAnswer(line.number, f"batch_req_{line.number}", 200, json.dumps({"to": text}).encode())


def refused(line: BatchLine, status: int = 503, after_s: float = 0.0) -> LineAnswer:
    return LineAnswer(line.number, "r", status, b'{"error":{"code":"queue_full"}}', after_s)


class FakeIngress:
    """Answers all lines of a call at once, by `answer`; or waits for `gate` first."""

    def __init__(self, wanted: int = 64) -> None:
        self.wanted = wanted
        self.answer: Callable[[BatchLine], LineAnswer] = ok
        self.gate = asyncio.Event()
        self.gate.set()
        self.sent: list[tuple[str, list[int]]] = []
        self.called = asyncio.Event()
        self.cancelled = 0
        self.open = self.most_open = 0
        self.lost_calls = 0
        """The next calls that end with `loss`, as if the replica were killed."""
        self.loss: BaseException = ConnectionError("the replica is gone")

    async def __call__(self, batch: Batch, lines: Sequence[BatchLine]) -> AsyncGenerator[LineAnswers]:
        self.sent.append((batch.id, [line.number for line in lines]))
        self.open += len(lines)
        self.most_open = max(self.most_open, self.open)
        self.called.set()
        try:
            yield LineAnswers((), "tide", self.wanted)
            await self.gate.wait()
            if self.lost_calls:
                self.lost_calls -= 1
                raise self.loss
            yield LineAnswers(tuple(map(self.answer, lines)), "tide", self.wanted)
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        finally:
            self.open -= len(lines)

    @property
    def numbers(self) -> list[int]:
        return [number for _, numbers in self.sent for number in numbers]


class Bench:
    """A store, an ingress, and runners of one clock."""

    def __init__(self, folder: Path) -> None:
        self.stored = Stored(folder)
        self.ingress = FakeIngress()
        self.now = NOW
        self.counted: dict[str, int] = {}
        self.validated: list[str] = []
        self.validate: Callable[[Batch], None] = lambda batch: self.validated.append(batch.id)
        self.ended: list[str] = []

    def runner(self) -> Runner:
        return Runner(
            self.stored.queue,
            self.validate,
            self.ingress,
            self.ended.append,
            self._count,
            lambda: self.now,
        )

    def _count(self, model: str, outcome: str, lines: int) -> None:
        self.counted[outcome] = self.counted.get(outcome, 0) + lines

    def unvalidate(self, but: str = "nobody") -> None:
        """Have all batches wait for their check, but those of an owner."""
        with self.stored.store.begin() as connection:
            change = BATCHES.update().where(BATCHES.c.owner != but)
            connection.execute(change.values(status="validating", in_progress_at=None))

    def wait(self, seconds: float = 0.5) -> None:
        """Let some time pass."""
        self.now += seconds

    def answer(self, batch: Batch) -> None:
        """Store an answer to each line."""
        queue = self.stored.queue
        lines = queue.lease(batch.id, batch.total, self.now, LEASE_S)
        queue.finish(
            batch.id,
            [
                Answered(each, ok(line))
                for each, line in zip(lines, queue.requests(batch, lines), strict=True)
            ],
        )

    def reason(self, batch: Batch) -> str:
        """Return the error of a batch."""
        errors = self.stored.batch(batch).errors
        assert errors is not None
        return str(errors[0]["message"])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Runner]:
        runner = self.runner()
        task = asyncio.create_task(runner.run())
        try:
            yield runner
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, batch: Batch, status: str) -> Batch:
        await until(lambda: self.stored.batch(batch).status == status)
        return self.stored.batch(batch)


async def until(holds: Callable[[], object], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Wait until `holds()`, and call `meanwhile` again and again."""
    async with asyncio.timeout(LIMIT_S):
        while not await asyncio.to_thread(holds):
            meanwhile()
            await asyncio.sleep(0.02)
