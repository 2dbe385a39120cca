"""Scrapes beside a load: collects the steps, sees that nothing else runs, and tells how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from replay.capacity.capacity_error import MeasurementError
from replay.capacity.guard import TrafficGuard
from replay.capacity.server import Server
from replay.fit import StepSample

SCRAPE_S = 1.0
"""Engines report once a second."""
LAG_S = 3.0
"""From a step to `/metrics`: a second to the report, one to Ray's agent, and one to spare."""
_EMPTY_S = 30.0
"""A request whose client has left ends with the step it is in, and shows two seconds later."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What is under way, and how far it is."""

    what: str
    figures: str = ""


class Watch:
    """For one load after the other.

    Args:
        server: The application.
        model: Its model that is measured.
        sent: How many requests the measurement has sent so far.
        tell: Gets the progress once a second.
    """

    def __init__(
        self, server: Server, model: str, sent: Callable[[], int], tell: Callable[[Progress], None]
    ) -> None:
        self._server = server
        self._model = model
        self._sent = sent
        self._tell = tell
        self._what = "looking for other traffic"
        self._figures: Callable[[], str] = str
        self.samples: list[StepSample] = []

    def show(self, what: str, figures: Callable[[], str]) -> None:
        """What is under way from now on, and how to tell how far it is."""
        self._what, self._figures = what, figures
        self._progress()

    async def begin(self) -> None:
        """Look around before the first request, for as long as others' may take to show."""
        self._guard = TrafficGuard(self._model, await self._server.scrape(self._model))
        self._progress()
        await asyncio.sleep(LAG_S)
        await self._look()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Scrape beside the block; raises within it for what does not belong."""
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self._run())
                yield
                task.cancel()
        except ExceptionGroup as failures:
            raise first_of(failures) from None

    async def last_reports(self) -> None:
        """Wait until the last steps are at `/metrics`."""
        self.show("waiting for the last reports", str)
        await asyncio.sleep(LAG_S)

    async def emptied(self) -> None:
        """Wait until the replica has nothing under way.

        Raises:
            MeasurementError: if it still has after half a minute.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + _EMPTY_S
        while (await self._server.scrape(self._model)).busy_requests:
            if loop.time() > end:
                raise MeasurementError(
                    f"{self._model} still has requests under way {_EMPTY_S:.0f} s after their client left"
                )
            await asyncio.sleep(SCRAPE_S)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SCRAPE_S)
            await self._look()
            self._progress()

    async def _look(self) -> None:
        scrape = await self._server.scrape(self._model)
        sample = self._guard.add(scrape, self._sent())
        if sample is not None:
            self.samples.append(sample)

    def _progress(self) -> None:
        self._tell(Progress(self._what, self._figures()))


def first_of(group: ExceptionGroup[Exception]) -> Exception:
    """The first plain error of a group, which may hold groups."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
