"""Attacks one process after the other, or at random, and waits for the application to recover."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from benchmarks.chaos.observer import Observer
from benchmarks.chaos.processes import resume, send_signal
from benchmarks.chaos.roles import BY_NAME, ENGINE_CORE, ENGINE_REPLICA, HAPROXY, Signal
from benchmarks.chaos.trace import Event, Process, Snapshot
from benchmarks.common.progress import say
from loadtests.client.drive import beside

POLL_S = 0.1
STREAM_S = 40.0
"""Streams under way when an event is over end within this time, or are given up."""
_FULL_S = 300.0
"""A server reaches full strength after its start within this time."""
_OPEN_S = 30.0
_RECENT_S = 1.0


class Server(Protocol):
    """The application under attack."""

    engines: int
    """Engine replicas at full strength."""

    def ended(self) -> str | None:
        """How it ended, in words; None while it runs."""

    async def start(self) -> None:
        """Start a new one at the same address."""

    async def stop(self) -> None:
        """End every process of it."""


@dataclass(frozen=True, slots=True)
class Attack:
    """The role to attack, and how."""

    role: str
    signal: Signal


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    load_s: float = 15.0
    """Streams that end this soon after an event are replaced. Later the cores are left to the recovery."""
    watch_s: float = 15.0
    """The shortest watch over an event."""
    recovery_s: float = 180.0
    """The longest watch over an event. A server that has not recovered by then is replaced."""
    stop_s: float = 10.0
    """A stopped process is continued after this time."""
    steady_s: float = 2.0
    """A server has recovered once it has been at full strength for this time."""
    baseline_s: float = 1.0
    """Before an event, all streams are open for this time."""


class Conductor:
    """Carries attacks out on a server that is watched."""

    def __init__(self, server: Server, observer: Observer, timing: Timing, chance: random.Random) -> None:
        self._server, self._observer = server, observer
        self._timing, self._chance = timing, chance
        self._full: set[str] = set()
        """The roles that have a process at full strength."""
        self._lost = False

    async def attack_in_sequence(self, attacks: Sequence[Attack]) -> None:
        """Attack an application at full strength with all its streams open, again and again."""
        for attack in attacks:
            await self.reach_full_strength()
            self._observer.open()
            await until(lambda: self._observer.streaming >= self._observer.job.streams, _OPEN_S)
            await asyncio.sleep(self._timing.baseline_s)
            event = self._attack(attack)
            if event is None:
                say(f"no process of role {attack.role}: skipped")
                await self._observer.close(STREAM_S)
                continue
            async with self.resuming(event):
                event.back_s = await self._recover(event)
            watched_s = time.monotonic() - event.at_s
            await self._observer.close(STREAM_S)
            if self._server.ended() is None and event.back_s is None:
                event.note = f"not at full strength within {self._timing.recovery_s:g} s"
                self._lost = True
            self._end(event, watched_s)

    async def attack_at_random(
        self, attacks: Sequence[Attack], minutes: float, pause_s: tuple[float, float]
    ) -> None:
        """Draw from `attacks`, with pauses between these two, whether the server has recovered or not."""
        end = time.monotonic() + 60 * minutes
        await self.reach_full_strength()
        self._observer.open()
        before: Event | None = None
        async with AsyncExitStack() as resuming:
            while time.monotonic() < end:
                await self._replace_lost()
                await asyncio.sleep(self._chance.uniform(*pause_s))
                event = self._attack(self._chance.choice(attacks))
                if event is None:
                    continue
                if before is not None:
                    before.end_s = event.at_s
                before = event
                await resuming.enter_async_context(self.resuming(event))
                await until(lambda: self._server.ended() is not None, pause_s[0])
                self._end(event, time.monotonic() - event.at_s)
        await self._observer.close(STREAM_S)
        await self.reach_full_strength()
        if before is not None:
            before.end_s = time.monotonic()

    async def reach_full_strength(self) -> None:
        """Wait until everything runs and answers, on a new server if the last one is lost.

        Raises TimeoutError if that does not come.
        """
        await self._replace_lost()
        if not await until(self._steadily_well(), _FULL_S):
            raise TimeoutError(f"the application is not at full strength after {_FULL_S:g} s")
        self._full = self._full or _roles_that_return(self._observer.latest)

    def carry_out(self, attack: Attack, pid: int) -> Event:
        """Kill or stop a process, and note the event."""
        send_signal(pid, attack.signal)
        event = Event(time.monotonic(), attack.role, attack.signal, pid)
        self._observer.trace.events.append(event)
        self._observer.take_snapshot()
        say(event.name)
        return event

    @asynccontextmanager
    async def resuming(self, event: Event) -> AsyncIterator[None]:
        """Continue a stopped process after its time, and no later than the end of the block."""
        try:
            async with beside(self._resume_later(event)):
                yield
        finally:
            if event.signal == "stop":
                resume(event.pid)

    async def _resume_later(self, event: Event) -> None:
        if event.signal == "stop":
            await asyncio.sleep(self._timing.stop_s)
            resume(event.pid)

    async def _replace_lost(self) -> None:
        if self._lost:
            say("starting a new server")
            await self._server.stop()
            await self._server.start()
            self._lost, self._full = False, set()

    def _attack(self, attack: Attack) -> Event | None:
        snapshot = self._observer.take_snapshot()
        found = [one for one in snapshot.processes if one.role == attack.role and one.runs]
        if not found:
            return None
        found.sort(key=_age)
        # An HAProxy that was replaced lives on with its streams; the newest one listens.
        chosen = found[-1] if attack.role == HAPROXY else self._chance.choice(found)
        return self.carry_out(attack, chosen.pid)

    async def _recover(self, event: Event) -> float | None:
        """When the server was at full strength again, in seconds after the event; None if it never was."""
        timing, closed = self._timing, False
        least = timing.watch_s + (timing.stop_s if event.signal == "stop" else 0.0)
        steadily_well = self._steadily_well()
        since: float | None = None
        while (passed := time.monotonic() - event.at_s) < timing.recovery_s:
            if self._server.ended() is not None:
                return None
            if passed > timing.load_s and not closed and not self._needs_load(event):
                closed = True
                self._observer.open_no_more()
            if not self._well():
                since = None
            elif since is None:
                since = passed
            if steadily_well() and passed > least:
                return since
            await asyncio.sleep(POLL_S)
        return None

    def _needs_load(self, event: Event) -> bool:
        """Whether the attacked role is still missing, and is none whose loading needs the cores."""
        if event.role in (ENGINE_CORE, ENGINE_REPLICA) or not BY_NAME[event.role].comes_back:
            return False
        return event.role not in self._observer.latest.running()

    def _end(self, event: Event, watched_s: float) -> None:
        ended = self._server.ended()
        if ended is not None:
            event.note, self._lost = f"{ended} after {watched_s:.1f} s", True
        event.end_s = time.monotonic()
        back = "" if event.back_s is None else f"back after {event.back_s:.1f} s"
        say(f"{event.role}: {event.note or back}")

    def _well(self) -> bool:
        snapshot, trace = self._observer.latest, self._observer.trace
        engines = self._server.engines
        if len(snapshot.engines()) < engines or not self._full <= _roles_that_return(snapshot):
            return False
        if not trace.readies or not trace.answers:
            return False
        ready, answer = trace.readies[-1], trace.answers[-1]
        fresh = time.monotonic() - min(ready.ended_s, answer.ended_s) < _RECENT_S
        return fresh and answer.ok and ready.up and ready.replicas >= engines

    def _steadily_well(self) -> Callable[[], bool]:
        """A condition that is true once the server has been well for some seconds at a stretch."""
        since: float | None = None

        def steadily_well() -> bool:
            nonlocal since
            since = (since or time.monotonic()) if self._well() else None
            return since is not None and time.monotonic() - since >= self._timing.steady_s

        return steadily_well


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` becomes true within `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _roles_that_return(snapshot: Snapshot) -> set[str]:
    return {role for role in snapshot.running() if BY_NAME[role].comes_back}


def _age(process: Process) -> float:
    return process.began
