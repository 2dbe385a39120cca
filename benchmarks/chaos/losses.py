"""Many losses in a row under greedy streams, each while at least one more engine serves."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from benchmarks.chaos.attack import STREAM_S, Attack, Conductor, Server
from benchmarks.chaos.engines import pairs
from benchmarks.chaos.greedy import SUBJECTS
from benchmarks.chaos.observed import Event, Look
from benchmarks.chaos.observer import Observer
from benchmarks.chaos.roles import ENGINE_CORE, ENGINE_REPLICA, RAYLET, Signal

_UNDISTURBED = 2
"""Answers about each subject before the first loss: one to compare with, and one that shows it is steady."""
_UNDISTURBED_S = 300.0
_POLL_S = 0.1
_SOONEST_S = 0.1
"""After a loss; so some losses come while the streams of the one before are still on their way."""
_NOTICED_S = 5.0
"""Within this `/ready` no longer counts an engine that was lost."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How many losses, and how quickly."""

    losses: int
    every_s: float
    """Mean time between two, as long as enough engines serve."""
    most_s: float
    """No loss is begun later."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A replica and its core."""

    replica: int
    core: int
    node: str


class LossesInARow:
    """Draws what is lost next, and waits while only one engine serves."""

    def __init__(
        self, conductor: Conductor, server: Server, observer: Observer, chance: random.Random,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._conductor, self._server, self._observer = conductor, server, observer
        self._chance, self._say = chance, say
        self._lost: list[tuple[float, int, int]] = []
        """When engines were lost, how many at once, and how many served until then."""

    async def run(self, attacks: Sequence[Attack], plan: Plan) -> None:
        """Hear every subject undisturbed, then lose what `attacks` name until the plan is fulfilled."""
        await self._conductor.full_strength()
        self._observer.open()
        self._say(f"{self._observer.job.streams} streams, undisturbed")
        if not await self._conductor.until(self._all_heard, _UNDISTURBED_S):
            raise TimeoutError(f"not every subject was heard undisturbed within {_UNDISTURBED_S:g} s")
        end = time.monotonic() + plan.most_s
        made = 0
        async with AsyncExitStack() as continued:
            while made < plan.losses and time.monotonic() < end and self._server.ended() is None:
                await asyncio.sleep(self._chance.uniform(_SOONEST_S, 2 * plan.every_s - _SOONEST_S))
                attack = self._chance.choice(attacks)
                while not (victims := self._victims(attack)) and time.monotonic() < end:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
                if not victims:
                    break
                event = self._lose(attack, *self._chance.choice(victims))
                made += 1
                await continued.enter_async_context(self._conductor.continued(event))
                await self._server.restore(event)
            # Ray gives up a node whose raylet stands still after about a minute: streams are open then, too.
            await self._conductor.until(lambda: not suspended(self._observer.look), end - time.monotonic())
            self._observer.open_no_more()
            await self._observer.close(STREAM_S)

    def _all_heard(self) -> bool:
        heard = [one.subject for one in self._observer.heard if one.whole]
        return all(heard.count(subject) >= _UNDISTURBED for subject in SUBJECTS)

    def _lose(self, attack: Attack, pid: int, engines: int) -> Event:
        if attack.role != RAYLET or attack.signal == "kill":
            self._lost.append((time.monotonic(), engines, self._serving()))
        return self._conductor.carry_out(attack, (pid,))

    def _victims(self, attack: Attack) -> list[tuple[int, int]]:
        return victims(self._observer.look, attack, self._serving())

    def _serving(self) -> int:
        readies = self._observer.trace.readies
        since = time.monotonic() - _NOTICED_S
        recent = [(count, before) for at, count, before in self._lost if at > since]
        return still_serving(readies[-1].replicas, recent) if readies else 0


def still_serving(ready: int, lost: Sequence[tuple[int, int]]) -> int:
    """How many engines serve, if `/ready` says so many.

    `lost` are recent losses, of how many engines each and how many served before it. `/ready` may count
    them still: it knows of one when it says no more than were left then.
    """
    return max(0, ready - sum(count for count, before in lost if ready > before - count))


def victims(look: Look, attack: Attack, serving: int) -> list[tuple[int, int]]:
    """What an attack may take so that an engine is left: a process, and how many engines go with it.

    `serving` is how many engines serve. Nothing outside tells one that still loads from one that serves, but
    they are the oldest. Engines whose raylet stands still serve, and Ray may give them up at any moment.
    """
    able = [one for one in engines(look)[:serving] if one.node not in suspended(look)]
    if attack.role == ENGINE_REPLICA:
        found = [(one.replica, 1) for one in able]
    elif attack.role == ENGINE_CORE:
        found = [(one.core, 1) for one in able]
    else:
        found = [
            (one.pid, sum(engine.node == one.node for engine in able))
            for one in look.processes
            if one.role == attack.role and one.runs and attack.node in ("", one.node)
        ]
    return [(pid, count) for pid, count in found if 0 < count < len(able)]


def suspended(look: Look) -> frozenset[str]:
    """The nodes whose raylet is stopped."""
    return frozenset(one.node for one in look.processes if one.role == RAYLET and not one.runs)


def engines(look: Look) -> list[Engine]:
    """Whole engines, the oldest first."""
    cores = {one.pid: one for one in look.processes if one.role == ENGINE_CORE}
    oldest = sorted(pairs(look), key=lambda pair: cores[pair[1]].began)
    return [Engine(replica, core, cores[core].node) for replica, core in oldest]


def attacks(only: Sequence[str], signals: Sequence[Signal], workers: Sequence[str]) -> list[Attack]:
    """What `--losses` draws from: engines in two ways, and with nodes their raylets."""
    roles = [role for role in (ENGINE_REPLICA, ENGINE_CORE) if role in only]
    found = [Attack(role, signal) for role in roles for signal in signals]
    if RAYLET in only:
        found += [Attack(RAYLET, signal, worker) for signal in signals for worker in workers]
    return found
