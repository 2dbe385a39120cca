"""Observes the replica beside a load: collects its steps, and refuses other traffic and other replicas."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from replay.capacity.method import Method
from replay.capacity.server import (
    MeasurementError,
    Readiness,
    Scrape,
    Server,
    arrivals_between,
    steps_between,
)
from replay.fit import StepSample
from serve_app.settings.knobs import Knobs

_EMPTY_S = 30.0
"""A request whose client has left ends with its current step, and its end shows two seconds later."""


def check_alone(model: str, seen: Readiness, knobs: Knobs) -> None:
    """Check that exactly one replica runs, and no other is on its way.

    Raises MeasurementError with the command that pins one.
    """
    pin = f"pin one: tideserve knobs set {model} min_replicas=1 max_replicas=1"
    if seen.replicas != 1 or seen.target_replicas > 1:
        state = f", {seen.phase}" if seen.phase else ""
        why = f" ({seen.reason})" if seen.reason else ""
        raise MeasurementError(
            f"{model} has {seen.replicas} ready replicas and {seen.target_replicas} running or on their "
            f"way{state}{why}; one ready is needed. To {pin}, and wait until /ready says so"
        )
    if knobs.max_replicas > 1 and knobs.mode == "act":
        raise MeasurementError(
            f"max_replicas of {model} is {knobs.max_replicas}, and the load would start more replicas; {pin}"
        )


class TrafficGuard:
    """Turns scrapes into samples, and refuses requests and replicas that are not the measurement's.

    Args:
        model: Its name, for messages.
        first: The scrape to count from, with no request of the measurement under way.
    """

    def __init__(self, model: str, first: Scrape) -> None:
        if first.busy_requests:
            raise MeasurementError(
                f"{model} has {first.busy_requests:.0f} requests under way; measure it without other traffic"
            )
        self._model = model
        self._first = self._last = first
        self._replica: str | None = None

    def add(self, scrape: Scrape, sent: int) -> StepSample | None:
        """The mean step since the last scrape; None if there was none.

        Raises MeasurementError for requests of others, or steps of another replica.
        """
        # Counters are a second or two behind, so a surplus over `sent` comes from other clients.
        others = arrivals_between(self._first, scrape) - sent
        if others > 0:
            raise MeasurementError(
                f"{others:.0f} requests of other clients reached {self._model} meanwhile; "
                "measure it without other traffic"
            )
        samples = steps_between(self._last, scrape)
        self._last = scrape
        for replica in samples:
            self._replica = self._replica or replica
            if replica != self._replica:
                raise MeasurementError(
                    f"another replica of {self._model} took steps meanwhile: {replica} beside {self._replica}"
                )
        return samples.get(self._replica or "")


class Observer:
    """Scrapes beside one load after the other."""

    def __init__(
        self,
        server: Server,
        model: str,
        sent: Callable[[], int],
        show: Callable[[str, str], None],
        method: Method,
    ) -> None:
        self._server = server
        self._model = model
        self._sent = sent
        self._show = show
        self._method = method
        self._load = "looking for other traffic"
        self._figures: Callable[[], str] = str
        self.samples: list[StepSample] = []

    def show(self, load: str, figures: Callable[[], str]) -> None:
        """Set the load that is under way, and the function that formats its progress."""
        self._load, self._figures = load, figures
        self._show(load, figures())

    async def begin(self) -> None:
        """Check for other traffic before the first request, for as long as it may take to show."""
        self._guard = TrafficGuard(self._model, await self._server.scrape(self._model))
        self._show(self._load, self._figures())
        await asyncio.sleep(self._method.report_lag_s)
        await self._look()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Scrape beside the block; raise within it for other traffic or another replica."""
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self._run())
                yield
                task.cancel()
        except ExceptionGroup as failures:
            raise first_of(failures) from None

    async def wait_for_reports(self) -> None:
        """Wait until the last steps are at `/metrics`."""
        self.show("waiting for the last reports", str)
        await asyncio.sleep(self._method.report_lag_s)

    async def wait_until_empty(self) -> None:
        """Wait until the replica has nothing under way.

        Raises MeasurementError if it still has after half a minute.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + _EMPTY_S
        while (await self._server.scrape(self._model)).busy_requests:
            if loop.time() > end:
                raise MeasurementError(
                    f"{self._model} still has requests under way {_EMPTY_S:.0f} s after their client left"
                )
            await asyncio.sleep(self._method.scrape_s)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._method.scrape_s)
            await self._look()
            self._show(self._load, self._figures())

    async def _look(self) -> None:
        scrape = await self._server.scrape(self._model)
        sample = self._guard.add(scrape, self._sent())
        if sample is not None:
            self.samples.append(sample)


def first_of(group: ExceptionGroup[Exception]) -> Exception:
    """The first plain error of a group, which may hold groups."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
