"""Bodies made before their time: a prompt of 100,000 tokens takes 10 ms, which would delay others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from loadtests.client.prompts import Prompts
from loadtests.planned import Planned

AHEAD_S = 5.0
HELD_BYTES = 128 * 2**20
"""Of bodies that wait; one is made however large it is."""


async def made(prompts: Prompts, planned: Planned) -> bytes:
    """One body, with a look at the sockets after each slice."""
    parts = []
    for part in prompts.parts(planned):
        parts.append(part)
        await asyncio.sleep(0)
    return b"".join(parts)


class Bodies:
    """Makes the bodies of a plan `AHEAD_S` before they are due. `begin` is the plan's start, monotonic."""

    def __init__(self, prompts: Prompts, ordered: Sequence[Planned], begin: float) -> None:
        self._prompts, self._ordered, self._begin = prompts, ordered, begin
        self._ready: dict[int, bytes] = {}
        self._held = 0
        self._late: set[int] = set()
        self._room = asyncio.Event()

    async def keep_ahead(self) -> None:
        """Make them all, in order."""
        for planned in self._ordered:
            while self._held > HELD_BYTES:
                self._room.clear()
                await self._room.wait()
            early_s = self._begin + planned.at_s - time.monotonic() - AHEAD_S
            if early_s > 0:
                await asyncio.sleep(early_s)
            if planned.index in self._late:
                self._late.discard(planned.index)
                continue
            body = await made(self._prompts, planned)
            if planned.index in self._late:
                self._late.discard(planned.index)
                continue
            self._ready[planned.index] = body
            self._held += len(body)

    async def take(self, planned: Planned) -> bytes:
        """The body of a request that is due: at once, or made now if its turn had not come."""
        body = self._ready.pop(planned.index, None)
        if body is None:
            self._late.add(planned.index)
            return await made(self._prompts, planned)
        self._held -= len(body)
        self._room.set()
        return body
