"""The measurement: check that one replica is alone, drive the sweep, and collect the steps it took."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from serve_app.autoscaling.knobs import Knobs
from serve_app.capacity.failure import MeasurementError
from serve_app.capacity.guard import TrafficGuard, check_alone
from serve_app.capacity.server import ColdStart, Server
from serve_app.capacity.sweep import Cell, Limits, Prompts, plan
from serve_app.replay.fit import StepSample

_SCRAPE_S = 1.0
"""Engines report once a second."""
_LAG_S = 3.0
"""From a step to `/metrics`: a second to the report, one to Ray's agent, and one to spare."""
_SETUP_S = 15.0
_WORDS = (
    "A tide rises and falls twice a day, and every harbour has learned to live with it: boats leave on the "
    "ebb, fishermen mend their nets at low water, children look for crabs between the stones. Numbers help, "
    "such as 7, 12, 360 or 1849; so do questions. Who built the old pier? Why does the moon pull the sea?"
)
"""Only its token ids are used: a source of ids that every vocabulary has."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and for how long."""

    url: str
    model: str | None
    duration_s: float
    """Of the sweep; checks before it and the last reports after it take some ten seconds more."""
    seed: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """Everything a profile is made of."""

    model: str
    samples: tuple[StepSample, ...]
    limits: Limits
    knobs: Knobs
    cold_start: ColdStart | None
    cells: int
    requests: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is: cell `cell` of `cells`, with `samples` seconds of steps and `left_s` to go."""

    cell: int
    cells: int
    what: str
    samples: int
    left_s: float


async def measure(order: Plan, tell: Callable[[Progress], None]) -> Measurement:
    """Measure one model's only replica. Cancelled, it closes its streams, which ends them on the server.

    Raises:
        MeasurementError: if the replica is not alone, or does not answer or report as it should.
    """
    # As many connections as streams, and those of the scrapes.
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        server = Server(session, order.url)
        model = await _choose(server, order.model)
        knobs = await server.knobs(model)
        check_alone(model, await server.readiness(model), knobs)
        limits, prompts = await _look(server, model, order.seed)
        try:
            cells = plan(limits, order.seed)
        except ValueError as error:
            raise MeasurementError(f"{model} cannot be measured: {error}") from None
        watch = _Watch(server, model, len(cells), tell)
        await watch.begin()
        async with watch.running():
            loop = asyncio.get_running_loop()
            end = loop.time() + order.duration_s
            for index, cell in enumerate(cells):
                left = end - loop.time()
                if left <= 0:
                    break
                watch.show(index + 1, str(cell), end)
                await _drive(server, model, cell, prompts, left / (len(cells) - index))
                check_alone(model, await server.readiness(model), knobs)
            watch.show(len(cells), "waiting for the last reports", end)
            await asyncio.sleep(_LAG_S)
        samples = watch.samples
        if not samples:
            raise MeasurementError(
                f"{model} reported no engine steps in {order.duration_s:.0f} s of load: "
                "llm_steps_total of its /metrics stood still"
            )
        return Measurement(
            model,
            tuple(samples),
            limits,
            knobs,
            await server.cold_start(model),
            len(cells),
            server.sent,
        )


async def _choose(server: Server, model: str | None) -> str:
    served = await server.models()
    if model is None and len(served) == 1:
        return served[0]
    if model not in served:
        given = (
            "several models: give --model, one of" if model is None else f"--model = {model!r}: not one of"
        )
        raise MeasurementError(f"{given} {', '.join(served)}")
    return model


async def _look(server: Server, model: str, seed: int) -> tuple[Limits, Prompts]:
    """What the replica takes, once it has told: its gauges come about a second after it is ready."""
    tokens = await server.tokenize(model, _WORDS)
    loop = asyncio.get_running_loop()
    end = loop.time() + _SETUP_S
    while (found := (await server.scrape(model)).limits()) is None:
        if loop.time() > end:
            raise MeasurementError(
                f"{model} does not tell llm_max_num_seqs at /metrics: its replica is not of this version"
            )
        await asyncio.sleep(_SCRAPE_S)
    return Limits(tokens.max_model_len, *found), Prompts(tokens.tokens, seed)


class _Watch:
    """Scrapes beside the sweep: collects samples, sees that nothing else runs, and tells how far it is."""

    def __init__(self, server: Server, model: str, cells: int, tell: Callable[[Progress], None]) -> None:
        self._server = server
        self._model = model
        self._cells = cells
        self._tell = tell
        self._shown = (0, "looking for other traffic", 0.0)
        self.samples: list[StepSample] = []

    def show(self, cell: int, what: str, end: float) -> None:
        """What is under way from now on; `end` of the sweep in the loop's time."""
        self._shown = (cell, what, end)
        self._progress()

    async def begin(self) -> None:
        """Look around before the first request, for as long as others' may take to show."""
        self._guard = TrafficGuard(self._model, await self._server.scrape(self._model))
        self._progress()
        await asyncio.sleep(_LAG_S)
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
            raise _first(failures) from None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_SCRAPE_S)
            await self._look()
            self._progress()

    async def _look(self) -> None:
        scrape = await self._server.scrape(self._model)
        sample = self._guard.add(scrape, self._server.sent)
        if sample is not None:
            self.samples.append(sample)

    def _progress(self) -> None:
        cell, what, end = self._shown
        left = max(0.0, end - asyncio.get_running_loop().time())
        self._tell(Progress(cell, self._cells, what, len(self.samples), left))


async def _drive(server: Server, model: str, cell: Cell, prompts: Prompts, for_s: float) -> None:
    """Keep `cell.concurrency` streams going for `for_s` seconds, then cut those that are open."""

    async def stream() -> None:
        while True:
            await server.generate(model, prompts.draw(cell.prompt_tokens), cell.output_tokens)

    try:
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(stream()) for _ in range(cell.concurrency)]
            await asyncio.sleep(for_s)
            for open_stream in streams:
                open_stream.cancel()
    except ExceptionGroup as failures:
        raise _first(failures) from None


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """The first plain error of a group, which may hold groups."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
