"""Which engines are in trouble, by their steps, their sequences and their answers."""

import asyncio
from types import SimpleNamespace

import pytest

from serve_app.engine.engine_health import FIRST_RUN_S, NOTICED_AFTER_S, EngineHealth
from tests.stub_engine import LIMIT_S

LOOKS_PER_S = 2
BUSY = {"sequences": 8, "stepping": True}
STUCK = {"sequences": 8, "stepping": False}
ADDING = {**STUCK, "adding": True}
"""The core loads an adapter."""
FIRST = {**STUCK, "first": True}
"""The core compiles kernels for the first request of a kind."""
IDLE = {"sequences": 0, "stepping": False}


class FakeEngine:
    """An engine looked at twice a second; `now` is its clock. Its core answers once `answers` is set."""

    def __init__(self, *past: tuple[float, dict[str, int]]) -> None:
        self.report = SimpleNamespace(steps=0, sequences=())
        self.adapters = SimpleNamespace(adding=False)
        self.first_run = False
        self.first_runs = SimpleNamespace(under_way=lambda: self.first_run)
        self.answers = asyncio.Event()
        self.has_work = False
        self.aborted: list[str] = []
        self.died: Exception | None = None
        self.llm = SimpleNamespace(
            errored=False,
            check_health=self._check_health,
            engine_core=SimpleNamespace(call_utility_async=self._call),
            abort=self._abort,
        )
        self.health = EngineHealth(self, hang_timeout_s=30)  # type: ignore[arg-type]
        self.now = 100.0
        for seconds, state in past:
            self.go_on(seconds, **state)

    async def _check_health(self) -> None:
        if self.died is not None:
            raise self.died

    async def _call(self, method: str) -> bool:
        assert method == "has_work"
        await self.answers.wait()
        return self.has_work

    async def _abort(self, names: list[str], internal: bool) -> None:
        assert internal
        self.aborted += names

    async def refuse(self, seconds: float, number: int) -> None:
        """Let `number` new sequences be there at each look, which the core has not got."""
        for look in range(round(seconds * LOOKS_PER_S)):
            self.now += 1 / LOOKS_PER_S
            self.report.sequences = [f"{look}-{each}" for each in range(number)]
            self.health.look(self.now)
            await self.health.ask_core(self.now)

    def go_on(
        self, seconds: float, *, sequences: int, stepping: int, adding: bool = False, first: bool = False
    ) -> None:
        self.adapters.adding = adding
        self.first_run = first
        self.report.sequences = [f"s{each}" for each in range(sequences)]
        for _ in range(round(seconds * LOOKS_PER_S)):
            self.now += 1 / LOOKS_PER_S
            self.report.steps += 50 * stepping
            self.health.look(self.now)

    async def is_replaced(self) -> bool:
        try:
            await self.health.check()
        except RuntimeError:
            return True
        return False


@pytest.mark.parametrize(
    ("past", "trouble", "replaced"),
    [
        ([(5, BUSY)], "", False),
        ([(5, BUSY), (3, STUCK)], "", False),
        ([(5, BUSY), (3.5, STUCK)], "no step for 4 s, with 8 unfinished sequences", False),
        ([(5, BUSY), (30, STUCK)], "no step for 30 s, with 8 unfinished sequences", True),
        ([(5, BUSY), (5, STUCK), (0.5, BUSY)], "", False),  # one step ends the stall
        ([(5, BUSY), (3600, IDLE), (1, STUCK)], "", False),  # the idle time is no stall
        # Its sequences have gone to other replicas. Without the trouble it would get the next ones.
        ([(5, BUSY), (5, STUCK), (30, IDLE)], "no step for 35 s, and does not answer", True),
        # A step may take three times the longest step so far.
        ([(5, BUSY), (20, STUCK), (0.5, BUSY), (59, STUCK)], "", False),
        ([(5, BUSY), (20, STUCK), (0.5, BUSY), (60, STUCK)], "no step for 60 s", True),
        ([(60, STUCK)], "", False),  # its statistics may be off
        # The load of an adapter may take longer, and is no step.
        ([(5, BUSY), (29, ADDING)], "", False),
        ([(5, BUSY), (30, ADDING)], "no step for 30 s", True),
        ([(5, BUSY), (29, ADDING), (3, STUCK)], "", False),
        ([(5, BUSY), (29, ADDING), (0.5, BUSY), (4, STUCK)], "no step for 4 s", False),
        # The first request of a kind may take minutes, which say nothing about later steps.
        ([(5, BUSY), (FIRST_RUN_S - 1, FIRST)], "", False),
        ([(5, BUSY), (FIRST_RUN_S, FIRST)], "no step for 600 s", True),
        ([(5, BUSY), (300, FIRST), (3, STUCK)], "", False),
        ([(5, BUSY), (300, FIRST), (0.5, BUSY), (4, STUCK)], "no step for 4 s", False),
    ],
)
async def test_stall_needs_sequences_and_no_steps(
    past: list[tuple[float, dict[str, int]]], trouble: str, replaced: bool
) -> None:
    engine = FakeEngine(*past)

    found = engine.health.trouble()
    assert trouble in found
    assert bool(found) == bool(trouble)
    assert await engine.is_replaced() == replaced


async def test_time_without_a_look_counts_as_two_looks() -> None:
    """The replica's own process was stopped: the engine's results lie in its socket, unread."""
    engine = FakeEngine((5, BUSY), (2.5, STUCK))

    engine.now += 60
    engine.health.look(engine.now)

    assert "no step for 4 s" in engine.health.trouble()


def test_standstill_is_no_longer_than_its_sequence() -> None:
    engine = FakeEngine((5, BUSY))
    stopped = engine.now
    engine.go_on(NOTICED_AFTER_S - 0.5, **STUCK)
    assert engine.health.standstill_s(engine.now) == 0.0
    engine.go_on(0.5, **STUCK)
    assert engine.health.standstill_s(engine.now + 0.4) == engine.now + 0.4 - stopped

    idle = FakeEngine((5, BUSY), (60, IDLE))
    came = idle.now + 0.3
    idle.go_on(5, **STUCK)
    assert NOTICED_AFTER_S < idle.health.standstill_s(idle.now) < idle.now - came


async def test_short_refused_sequences_are_no_stall() -> None:
    engine = FakeEngine((5, BUSY))
    engine.answers.set()

    await engine.refuse(120, number=20)

    assert engine.health.trouble() == ""
    assert not await engine.is_replaced()
    assert engine.aborted == []


async def test_sequences_that_the_core_has_lost_are_aborted_and_are_no_stall() -> None:
    engine = FakeEngine((5, BUSY))
    engine.answers.set()

    for _ in range(round(NOTICED_AFTER_S * LOOKS_PER_S)):
        engine.go_on(1 / LOOKS_PER_S, sequences=2, stepping=False)
        await engine.health.ask_core(engine.now)
        assert engine.health.trouble() == ""
    assert engine.aborted == []
    engine.go_on(1 / LOOKS_PER_S, sequences=2, stepping=False)
    await engine.health.ask_core(engine.now)

    assert engine.aborted == ["s0", "s1"]


async def test_core_with_work_and_without_steps_is_replaced() -> None:
    engine = FakeEngine((5, BUSY))
    engine.answers.set()
    engine.has_work = True

    for _ in range(30 * LOOKS_PER_S):
        assert not await engine.is_replaced()
        engine.go_on(1 / LOOKS_PER_S, **STUCK)
        await engine.health.ask_core(engine.now)

    assert await engine.is_replaced()
    assert engine.aborted == []


async def test_answer_of_the_core_ends_a_stall() -> None:
    engine = FakeEngine((5, BUSY), (5, STUCK), (5, IDLE))
    watching = asyncio.create_task(engine.health.watch())
    await asyncio.sleep(0)
    assert engine.health.trouble()

    engine.answers.set()
    async with asyncio.timeout(LIMIT_S):
        while engine.health.trouble():
            await asyncio.sleep(0)

    assert engine.health.standstill_s(engine.now) == 0.0
    watching.cancel()


async def test_dead_core_is_in_trouble_and_replaced() -> None:
    engine = FakeEngine((5, BUSY), (5, STUCK))
    engine.died, engine.llm.errored = LookupError("core"), True

    assert engine.health.trouble() == "its engine core has died"
    assert engine.health.standstill_s(engine.now) == 0.0
    with pytest.raises(RuntimeError, match="LookupError: core"):
        await engine.health.check()
