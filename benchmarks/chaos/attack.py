"""Attacks one process after the other, or at random, and waits for the application to recover."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from benchmarks.chaos.engines import pairs
from benchmarks.chaos.observed import Event, Look, Process
from benchmarks.chaos.observer import Observer
from benchmarks.chaos.processes import go_on, send, strength
from benchmarks.chaos.roles import BY_NAME, ENGINE_CORE, ENGINE_REPLICA, HAPROXY, NODE, Signal

_POLL_S = 0.1
_RECENT_S = 1.0
STREAM_S = 40.0
"""Streams under way when an event is over end within this, or hang."""
_FULL_S = 300.0
"""A server is at full strength after its start within this."""
_OPEN_S = 30.0


class Server(Protocol):
    """The application under attack."""

    engines: int
    """Engine replicas at full strength."""

    def ended(self) -> str | None:
        """How it ended, in words; None while it runs."""

    async def start(self) -> None:
        """A new one, at the same address."""

    async def stop(self) -> None:
        """End every process of it."""

    async def restore(self, event: Event) -> None:
        """Do what whoever runs it would do after this event: start a node in place of a lost one."""


@dataclass(frozen=True, slots=True)
class Attack:
    """What is to be done."""

    role: str
    signal: Signal
    node: str = ""
    """Empty: on whichever node has a process of the role."""

    @property
    def name(self) -> str:
        """For a line of progress."""
        return f"{self.role} {self.node}".strip()


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    load_s: float = 15.0
    """For so long after an event, streams that end are replaced; then the cores are left to the recovery."""
    watch_s: float = 15.0
    """An event is watched for no less."""
    recovery_s: float = 180.0
    """And for no longer; a server that has not recovered by then is replaced."""
    stop_s: float = 10.0
    """A stopped process is continued after this."""
    steady_s: float = 2.0
    """So long is it at full strength before it counts as recovered."""
    baseline_s: float = 1.0
    """Before an event, all streams are open for so long."""


class Conductor:
    """Carries attacks out on a server that is watched."""

    def __init__(
        self,
        server: Server,
        observer: Observer,
        timing: Timing,
        chance: random.Random,
        say: Callable[[str], None],
    ) -> None:
        self._server, self._observer, self._timing = server, observer, timing
        self._chance, self._say = chance, say
        self._full: frozenset[tuple[str, str]] = frozenset()
        """The roles that have a process at full strength, with its node."""
        self._lost = False

    async def sequence(self, attacks: Sequence[Attack]) -> None:
        """One after the other, each on an application at full strength with all its streams open."""
        for attack in attacks:
            await self.full_strength()
            self._observer.open()
            await self.until(lambda: self._observer.streaming >= self._observer.job.streams, _OPEN_S)
            await asyncio.sleep(self._timing.baseline_s)
            event = self._attack(attack)
            if event is None:
                self._say(f"no process of role {attack.role}: skipped")
                await self._observer.close(STREAM_S)
                continue
            async with self.continued(event):
                back_s = await self._recovered(event)
            watched_s = time.monotonic() - event.at_s
            await self._observer.close(STREAM_S)
            self._end(event, back_s, watched_s)

    async def at_random(
        self, attacks: Sequence[Attack], minutes: float, pause_s: tuple[float, float]
    ) -> None:
        """Drawn from `attacks` with pauses between these two, whether it has recovered or not."""
        end = time.monotonic() + 60 * minutes
        await self.full_strength()
        self._observer.open()
        async with AsyncExitStack() as continued:
            while time.monotonic() < end:
                await self._replace_lost()
                await asyncio.sleep(self._chance.uniform(*pause_s))
                event = self._attack(self._chance.choice(attacks))
                if event is None:
                    continue
                await continued.enter_async_context(self.continued(event))
                await self._server.restore(event)
                await self.until(lambda: self._server.ended() is not None, pause_s[0])
                self._end(event, None, time.monotonic() - event.at_s, final=False)
        await self._observer.close(STREAM_S)
        await self.full_strength()
        trace = self._observer.trace
        trace.ends_s = [*(event.at_s for event in trace.events[1:]), time.monotonic()][: len(trace.events)]

    async def full_strength(self) -> None:
        """Wait until everything runs and answers, on a new server if the last one is lost.

        Raises TimeoutError if that does not come.
        """
        await self._replace_lost()
        if not await self.until(self._steady(), _FULL_S):
            raise TimeoutError(f"the application is not at full strength after {_FULL_S:g} s")
        self._full = self._full or _present(self._observer.look)

    async def _replace_lost(self) -> None:
        if self._lost:
            self._say("starting a new server")
            await self._server.stop()
            await self._server.start()
            self._lost, self._full = False, frozenset()

    def _attack(self, attack: Attack) -> Event | None:
        pids = self._victims(self._observer.look_now(), attack)
        return self.carry_out(attack, pids) if pids else None

    def carry_out(self, attack: Attack, pids: tuple[int, ...]) -> Event:
        """Kill or stop these processes, and note it."""
        send(pids, attack.signal)
        event = Event(time.monotonic(), attack.role, attack.signal, pids, attack.node)
        self._observer.trace.events.append(event)
        self._observer.look_now()
        self._say(f"{attack.name}: {'killed' if attack.signal == 'kill' else 'stopped'}")
        return event

    def _victims(self, look: Look, attack: Attack) -> tuple[int, ...]:
        if attack.role == "node":
            return self._observer.processes.everything(attack.node)
        found = [
            one
            for one in look.processes
            if one.role == attack.role and one.runs and attack.node in ("", one.node)
        ]
        if not found:
            return ()
        if attack.role == HAPROXY:  # One that was replaced lives on with its streams; the newest listens.
            return (max(found, key=_age).pid,)
        return (self._chance.choice(sorted(found, key=_age)).pid,)

    @asynccontextmanager
    async def continued(self, event: Event) -> AsyncIterator[None]:
        """Continue what was stopped after its time, and no later than the block's end."""
        task = asyncio.create_task(self._continue_later(event))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            if event.signal == "stop":
                go_on(event.pids)

    async def _continue_later(self, event: Event) -> None:
        if event.signal == "stop":
            await asyncio.sleep(self._timing.stop_s)
            go_on(event.pids)

    async def _recovered(self, event: Event) -> float | None:
        """Until it is at full strength again; when that was, after the event. None: it will not be."""
        await self._server.restore(event)
        least = self._timing.watch_s + (self._timing.stop_s if event.signal == "stop" else 0.0)
        steady, closed = self._steady(), False
        since: float | None = None
        while (passed := time.monotonic() - event.at_s) < self._timing.recovery_s:
            if self._server.ended() is not None:
                return None
            if passed > self._timing.load_s and not closed and not self._holds_on(event):
                closed = True
                self._observer.open_no_more()
            if not self._well():
                since = None
            elif since is None:
                since = passed
            if steady() and passed > least:
                return since
            await asyncio.sleep(_POLL_S)
        return None

    def _holds_on(self, event: Event) -> bool:
        """Whether what was attacked is still missing, and is none of those whose loading needs the cores."""
        role = BY_NAME[event.role]
        loads = (ENGINE_CORE, ENGINE_REPLICA, NODE.name)
        return role.comes_back and role.name not in loads and role.name not in strength(self._observer.look)

    def _end(self, event: Event, back_s: float | None, watched_s: float, *, final: bool = True) -> None:
        trace = self._observer.trace
        ended = self._server.ended()
        note = "" if ended is None else f"{ended} after {watched_s:.1f} s"
        lost = ended is not None or (final and back_s is None)
        if lost and not note:
            note = f"not at full strength within {self._timing.recovery_s:g} s"
        trace.ends_s.append(time.monotonic())
        trace.notes.append(note)
        trace.back_s.append(back_s)
        self._say(f"{event.role}: " + (note or ("" if back_s is None else f"back after {back_s:.1f} s")))
        self._lost = self._lost or lost

    def _well(self) -> bool:
        look, trace = self._observer.look, self._observer.trace
        if len(pairs(look)) < self._server.engines or not self._full <= _present(look):
            return False
        if not trace.readies or not trace.answers:
            return False
        ready, answer = trace.readies[-1], trace.answers[-1]
        fresh = time.monotonic() - min(ready.ended_s, answer.ended_s) < _RECENT_S
        return fresh and answer.ok and ready.said == "up" and ready.replicas >= self._server.engines

    def _steady(self) -> Callable[[], bool]:
        """Whether it has been well for some seconds at a stretch."""
        since: float | None = None

        def steady() -> bool:
            nonlocal since
            since = (since or time.monotonic()) if self._well() else None
            return since is not None and time.monotonic() - since >= self._timing.steady_s

        return steady

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether `condition` comes true within so long."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(_POLL_S)
        return True


def _present(look: Look) -> frozenset[tuple[str, str]]:
    return frozenset(
        (one.role, one.node) for one in look.processes if one.runs and BY_NAME[one.role].comes_back
    )


def _age(process: Process) -> float:
    return process.began
