"""The measurement: check that one replica is alone, drive the sweep, and collect the steps it took."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp

from replay.capacity.observer import Observer, check_alone, first_of
from replay.capacity.server import ColdStart, MeasurementError, Server
from replay.capacity.sweep import Cell, Limits, Prompts, plan
from replay.fit import StepSample
from serve_app.settings.knobs import Knobs

_SETUP_S = 15.0
_POLL_S = 1.0
_WORDS = (
    "A tide rises and falls twice a day, and every harbour has learned to live with it: boats leave on the "
    "ebb, fishermen mend their nets at low water, children look for crabs between the stones. Numbers help, "
    "such as 7, 12, 360 or 1849; so do questions. Who built the old pier? Why does the moon pull the sea?"
)
"""Only its token ids are used: a source of ids that every vocabulary has."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The model to measure, and the time for it."""

    url: str
    model: str | None
    duration_s: float
    """Seconds of the sweep; the checks before it and the last reports after it take some ten more."""
    seed: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request."""


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
    token_ids: tuple[int, ...] = ()
    """Token ids of the model's vocabulary, to draw prompts from."""


async def measure(order: Plan, tell: Callable[[str, str], None]) -> Measurement:
    """Measure one model's only replica. Cancelled, it closes its streams, which ends them on the server.

    Raises MeasurementError if the replica is not alone, or does not answer or report as it should.
    """
    # As many connections as streams, and those of the scrapes.
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=order.headers) as session:
        server = Server(session, order.url)
        model = await _choose(server, order.model)
        knobs = await server.knobs(model)
        check_alone(model, await server.readiness(model), knobs)
        limits, prompts = await _look(server, model, order.seed)
        try:
            cells = plan(limits, order.seed)
        except ValueError as error:
            raise MeasurementError(f"{model} cannot be measured: {error}") from None
        observer = Observer(server, model, lambda: server.sent, tell)
        await observer.begin()
        async with observer.running():
            loop = asyncio.get_running_loop()
            end = loop.time() + order.duration_s

            def figures() -> str:
                return f"{len(observer.samples)} samples, {max(0.0, end - loop.time()):.0f} s left"

            for index, cell in enumerate(cells):
                left = end - loop.time()
                if left <= 0:
                    break
                observer.show(f"load {index + 1}/{len(cells)}: {cell}", figures)
                await _drive(server, model, cell, prompts, left / (len(cells) - index))
                check_alone(model, await server.readiness(model), knobs)
            await observer.last_reports()
        samples = observer.samples
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
            prompts.token_ids,
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
    """The replica's limits, from gauges that come about a second after it is ready."""
    tokens = await server.tokenize(model, _WORDS)
    loop = asyncio.get_running_loop()
    end = loop.time() + _SETUP_S
    while (found := (await server.scrape(model)).limits()) is None:
        if loop.time() > end:
            raise MeasurementError(
                f"{model} does not tell llm_max_num_seqs at /metrics: its replica is not of this version"
            )
        await asyncio.sleep(_POLL_S)
    return Limits(tokens.max_model_len, *found), Prompts(tokens.tokens, seed)


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
        raise first_of(failures) from None
