"""The measurement of the step time: loads that differ as the coefficients need it, and the steps under them.

A step has four coefficients: per step, sequence, KV token and prefill token. So the loads differ in the
batch, in the KV tokens at the same batch, and in the prefill tokens of a step: prompt lengths and
concurrencies are crossed, and some loads do little but prefill.
"""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from replay.capacity.method import Plan
from replay.capacity.observer import Observer, check_alone, first_of
from replay.capacity.server import ColdStart, MeasurementError, Server
from replay.fit import StepSample
from serve_app.settings.knobs import Knobs

_MOST_SEQUENCES = 64
"""Concurrency beyond which this client would be measured rather than the engine."""
_SHORT_PROMPT, _LONG_PROMPT = 32, 4096
_DECODING, _PREFILLING = 128, 4
"""Tokens of an answer in loads that decode, and in loads that mainly prefill."""
_KV_SHARE = 0.8
"""Loads fill at most this share of the KV cache: a preempted sequence is prefilled twice."""
_WORDS = (
    "A tide rises and falls twice a day, and every harbour has learned to live with it: boats leave on the "
    "ebb, fishermen mend their nets at low water, children look for crabs between the stones. Numbers help, "
    "such as 7, 12, 360 or 1849; so do questions. Who built the old pier? Why does the moon pull the sea?"
)
"""Only its token ids are used: a source of ids that every vocabulary has."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the server."""

    max_model_len: int
    """Tokens of a prompt and its answer."""
    kv_cache_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """`concurrency` streams, each of which sends its next request when its last is answered."""

    prompt_tokens: int
    output_tokens: int
    concurrency: int

    def __str__(self) -> str:
        streams = "stream" if self.concurrency == 1 else "streams"
        return f"{self.concurrency} {streams} of {self.prompt_tokens} + {self.output_tokens} tokens"


def plan_loads(limits: Limits, seed: int) -> tuple[Load, ...]:
    """The loads, in an order drawn by `seed`: otherwise a drift of the machine would look like a load.

    Raises ValueError for a context or a cache too small for prompts of different lengths.
    """
    room = min(limits.max_model_len, limits.kv_cache_tokens)
    answer = min(_DECODING, room // 4)
    longest = min(_LONG_PROMPT, room - answer)
    if longest < 2 * _SHORT_PROMPT:
        raise ValueError(
            f"max_model_len = {limits.max_model_len} and {limits.kv_cache_tokens} tokens of KV cache: "
            f"prompts of {2 * _SHORT_PROMPT} tokens and their answers must fit"
        )
    middle = round(math.sqrt(_SHORT_PROMPT * longest))
    most = min(limits.max_num_seqs, _MOST_SEQUENCES)
    few = min(max(2, round(math.sqrt(most))), most)

    def load(prompt: int, output: int, streams: int) -> Load:
        fitting = int(_KV_SHARE * limits.kv_cache_tokens / (prompt + output))
        return Load(prompt, output, max(1, min(streams, fitting)))

    loads = [
        load(prompt, answer, streams)
        for prompt in (_SHORT_PROMPT, middle, longest)
        for streams in (1, few, most)
    ]
    loads += [
        load(prompt, _PREFILLING, streams)
        for prompt, streams in ((middle, few), (longest, 1), (longest, few))
    ]
    unique = list(dict.fromkeys(loads))
    random.Random(seed).shuffle(unique)  # noqa: S311 - an order, not a secret
    return tuple(unique)


class Prompts:
    """Prompts of exact lengths, drawn from token ids of the model's own vocabulary.

    Random from the first token on, so that no two share a block of the prefix cache.
    """

    def __init__(self, token_ids: list[int], seed: int) -> None:
        self.token_ids = tuple(sorted(set(token_ids)))
        self._random = random.Random(seed)  # noqa: S311 - repeatable load, not a secret

    def draw(self, length: int) -> list[int]:
        """A prompt of `length` tokens."""
        return self._random.choices(self.token_ids, k=length)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The steps and the facts that a profile is made of."""

    model: str
    samples: tuple[StepSample, ...]
    limits: Limits
    knobs: Knobs
    cold_start: ColdStart | None
    loads: int
    requests: int
    token_ids: tuple[int, ...] = ()
    """Token ids of the model's vocabulary, to draw prompts from."""


async def measure(plan: Plan, show: Callable[[str, str], None]) -> Measurement:
    """Measure one model's only replica. Cancelled, it closes its streams, which ends them on the server.

    Raises MeasurementError if the replica is not alone, or does not answer or report as it should.
    """
    # As many connections as streams, and those of the scrapes.
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=plan.headers) as session:
        server = Server(session, plan.url)
        model = await _choose(server, plan.model)
        knobs = await server.knobs(model)
        check_alone(model, await server.readiness(model), knobs)
        limits, prompts = await _read_limits(server, model, plan)
        try:
            loads = plan_loads(limits, plan.seed)
        except ValueError as error:
            raise MeasurementError(f"{model} cannot be measured: {error}") from None
        observer = Observer(server, model, lambda: server.sent, show, plan.method)
        await observer.begin()
        async with observer.running():
            loop = asyncio.get_running_loop()
            end = loop.time() + plan.duration_s

            def figures() -> str:
                return f"{len(observer.samples)} samples, {max(0.0, end - loop.time()):.0f} s left"

            for index, load in enumerate(loads):
                left = end - loop.time()
                if left <= 0:
                    break
                observer.show(f"load {index + 1}/{len(loads)}: {load}", figures)
                await _drive(server, model, load, prompts, left / (len(loads) - index))
                check_alone(model, await server.readiness(model), knobs)
            await observer.wait_for_reports()
        samples = observer.samples
        if not samples:
            raise MeasurementError(
                f"{model} reported no engine steps in {plan.duration_s:.0f} s of load: "
                "llm_steps_total of its /metrics stood still"
            )
        return Measurement(
            model,
            tuple(samples),
            limits,
            knobs,
            await server.cold_start(model),
            len(loads),
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


async def _read_limits(server: Server, model: str, plan: Plan) -> tuple[Limits, Prompts]:
    """The replica's limits, from gauges that come about a second after it is ready."""
    tokens = await server.tokenize(model, _WORDS)
    loop = asyncio.get_running_loop()
    end = loop.time() + plan.method.setup_s
    while (found := (await server.scrape(model)).limits()) is None:
        if loop.time() > end:
            raise MeasurementError(
                f"{model} does not report llm_max_num_seqs at /metrics: its replica is not of this version"
            )
        await asyncio.sleep(plan.method.scrape_s)
    return Limits(tokens.max_model_len, *found), Prompts(tokens.tokens, plan.seed)


async def _drive(server: Server, model: str, load: Load, prompts: Prompts, for_s: float) -> None:
    """Keep the streams of `load` going for `for_s` seconds, then close the open ones."""

    async def stream() -> None:
        while True:
            await server.generate(model, prompts.draw(load.prompt_tokens), load.output_tokens)

    try:
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(stream()) for _ in range(load.concurrency)]
            await asyncio.sleep(for_s)
            for open_stream in streams:
                open_stream.cancel()
    except ExceptionGroup as failures:
        raise first_of(failures) from None
