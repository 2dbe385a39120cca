"""Many losses of engines in a row under greedy streams, each while at least one more engine serves."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from benchmarks.chaos.attack import POLL_S, STREAM_S, Attack, Conductor, Server, until
from benchmarks.chaos.greedy_chat import SUBJECTS
from benchmarks.chaos.observer import Observer
from benchmarks.chaos.roles import ENGINE_REPLICA
from benchmarks.chaos.trace import Snapshot
from benchmarks.common.progress import say

_UNDISTURBED = 2
"""Answers about each subject before the first loss: one to compare with, and one that shows it is steady."""
_UNDISTURBED_S = 300.0
_SOONEST_S = 0.1
"""The shortest time between two losses. Some come while streams are still on their way from the last."""
_NOTICED_S = 5.0
"""Within this time `/ready` no longer counts an engine that was lost."""


class LossesInARow:
    """Draws the next loss, and waits while only one engine serves."""

    def __init__(
        self, conductor: Conductor, server: Server, observer: Observer, chance: random.Random
    ) -> None:
        self._conductor, self._server = conductor, server
        self._observer, self._chance = observer, chance
        self._lost: list[tuple[float, int]] = []
        """When engines were lost, and how many served until then."""

    async def run(self, attacks: Sequence[Attack], losses: int, every_s: float, most_s: float) -> None:
        """Read an answer about every subject undisturbed, then lose engines.

        Args:
            attacks: The attacks to draw from.
            losses: How many engines to lose.
            every_s: Mean time between two losses, as long as enough engines serve.
            most_s: No loss begins later than this.
        """
        await self._conductor.reach_full_strength()
        self._observer.open()
        say(f"{self._observer.job.streams} streams, undisturbed")
        if not await until(self._all_read, _UNDISTURBED_S):
            raise TimeoutError(f"not every subject had two whole answers within {_UNDISTURBED_S:g} s")
        end = time.monotonic() + most_s
        made = 0
        async with AsyncExitStack() as resuming:
            while made < losses and time.monotonic() < end and self._server.ended() is None:
                await asyncio.sleep(self._chance.uniform(_SOONEST_S, 2 * every_s - _SOONEST_S))
                attack = self._chance.choice(attacks)
                while not (found := self._victims(attack)) and time.monotonic() < end:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
                if not found:
                    break
                self._lost.append((time.monotonic(), self._serving()))
                event = self._conductor.carry_out(attack, self._chance.choice(found))
                made += 1
                await resuming.enter_async_context(self._conductor.resuming(event))
            await self._observer.close(STREAM_S)
        for event in self._observer.trace.events:
            event.end_s = time.monotonic()

    def _all_read(self) -> bool:
        read = [one.subject for one in self._observer.trace.streams if one.whole]
        return all(read.count(subject) >= _UNDISTURBED for subject in SUBJECTS)

    def _victims(self, attack: Attack) -> list[int]:
        return victims(self._observer.latest, attack, self._serving())

    def _serving(self) -> int:
        readies = self._observer.trace.readies
        since = time.monotonic() - _NOTICED_S
        return (
            still_serving(readies[-1].replicas, [n for at, n in self._lost if at > since]) if readies else 0
        )


def still_serving(ready: int, before_losses: Sequence[int]) -> int:
    """How many engines serve, if `/ready` says `ready`.

    `before_losses` has, for each recent loss, how many engines served until then. `/ready` may count the
    lost engine still; it knows of a loss once it says fewer than served before.
    """
    return max(0, ready - sum(ready >= before for before in before_losses))


def victims(snapshot: Snapshot, attack: Attack, serving: int) -> list[int]:
    """The processes that an attack may take so that an engine is left.

    Nothing outside tells an engine that still loads from one that serves, but the `serving` engines that
    serve are the oldest.
    """
    able = snapshot.engines()[:serving]
    if len(able) < 2:
        return []
    return [replica if attack.role == ENGINE_REPLICA else core for replica, core in able]
