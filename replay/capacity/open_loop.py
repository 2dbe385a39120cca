"""The search for the knee: Poisson arrivals at one rate after the other."""

import asyncio
import random
import time
from bisect import bisect_right
from collections.abc import Callable

import aiohttp

from loadtests.client.drive import drive
from loadtests.client.prompts import Target
from loadtests.plan import Planned
from loadtests.record import Record
from loadtests.scenario import Client
from replay.capacity.knee import FIRST_SHARE, Rate, Targets, curve, duration_s, judge, knee, next_rps, targets
from replay.capacity.measure import Limits, Measurement
from replay.capacity.method import Plan
from replay.capacity.observer import Observer, check_alone, first_of
from replay.capacity.server import MeasurementError, Server
from replay.profile import Knee, Profile
from serve_app.policy.capacity_model import Mix, capacity_rps

_GRACE_TARGETS = 2.0
"""Requests open this many targets after the last arrival are closed. They count by their first token."""


def fitting(prompt_tokens: int, output_tokens: int, limits: Limits) -> tuple[int, int]:
    """Both, cut to the context and the KV cache: the answer to a quarter of their room, then the prompt."""
    room = min(limits.max_model_len, limits.kv_cache_tokens)
    if prompt_tokens + output_tokens <= room:
        return prompt_tokens, output_tokens
    output = max(1, min(output_tokens, room // 4))
    return max(1, min(prompt_tokens, room - output)), output


def arrivals(
    rps: float, for_s: float, draw: random.Random, first: int, prompt_tokens: int, output_tokens: int
) -> list[Planned]:
    """`rps * for_s` requests, each at a time drawn evenly.

    This is a Poisson process with a known number (Ross, "Stochastic Processes", 2nd ed. 1996, theorem 2.3.1).
    A drawn number would be off by 7 % in 20 s of 10 requests a second, and the knee is searched to 5 %.
    """
    times = sorted(draw.uniform(0.0, for_s) for _ in range(max(1, round(rps * for_s))))
    return [
        Planned(first + place, at_s, "knee", None, "completions", prompt_tokens, output_tokens)
        for place, at_s in enumerate(times)
    ]


async def find_knee(
    plan: Plan, measured: Measurement, profile: Profile, show: Callable[[str, str], None]
) -> tuple[Knee, tuple[Rate, ...]] | None:
    """The knee of the replica that `profile` describes, and every rate of the curve.

    None if an empty replica misses both targets: no rate would meet them. Cancelled, it closes its streams,
    which ends them on the server.

    Raises MeasurementError if a request fails, or the replica is not alone.
    """
    prompt, output = fitting(plan.prompt_tokens, plan.output_tokens, measured.limits)
    mix = Mix(prompt_tokens=float(prompt), output_tokens=float(output))
    wanted = targets(profile.step, mix, measured.knobs)
    if wanted.ttft_s is None and wanted.itl_s is None:
        return None
    formula_rps = capacity_rps(profile.step, mix, measured.knobs, float(profile.kv_cache_tokens))
    async with aiohttp.ClientSession(headers=plan.headers) as session:
        server = Server(session, plan.url)
        search = _Search(server, plan, measured, wanted, (prompt, output), show)
        tried: list[Rate] = []
        await search.begin()
        while (rps := next_rps(tried, FIRST_SHARE * formula_rps, plan.method)) is not None:
            again = any(rate.rps == rps for rate in tried)
            tried.append(await search.keep(rps, len(tried) + 1, again))
    return summary(tried, formula_rps, wanted, (prompt, output)), curve(tried)


def summary(tried: list[Rate], formula_rps: float, wanted: Targets, tokens: tuple[int, int]) -> Knee:
    """The knee for the fleet file."""
    rates = curve(tried)
    found = knee(tried)
    above = next((rate for rate in rates if not rate.passed), None)
    at = found or rates[0]
    return Knee(
        prompt_tokens=tokens[0],
        output_tokens=tokens[1],
        rps=_short(found.rps) if found is not None else 0.0,
        bound=above.miss or "none" if above is not None else "none",
        ttft_target_s=wanted.ttft_s,
        itl_target_s=wanted.itl_s,
        percentile=wanted.percentile,
        ttft_s=_latency(at.ttft_s),
        itl_s=_latency(at.itl_s),
        formula_rps=_short(formula_rps),
        curve=tuple(
            (_short(rate.rps), _latency(rate.ttft_s), _latency(rate.itl_s), round(rate.attained, 4))
            for rate in rates
        ),
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _latency(seconds: float) -> float | None:
    return _short(seconds) if seconds < float("inf") else None


class _Search:
    """Keeps rates, with scrapes beside them that find other traffic."""

    def __init__(
        self,
        server: Server,
        plan: Plan,
        measured: Measurement,
        wanted: Targets,
        tokens: tuple[int, int],
        show: Callable[[str, str], None],
    ) -> None:
        self._server = server
        self._plan = plan
        self._measured = measured
        self._wanted = wanted
        self._tokens = tokens
        self._random = random.Random(plan.seed)  # noqa: S311 - repeatable load, not a secret
        self._observer = Observer(server, measured.model, self._sent, show, plan.method)
        self._sent_before = 0
        self._due_s: list[float] = []
        self._begin = 0.0
        self._target = Target(
            url=plan.url.rstrip("/"),
            headers=plan.headers,
            model=measured.model,
            token_ids=measured.token_ids,
            words=(),
            tokens_per_word=1.0,
            # With a seed used before, the replica would find the prompts in its prefix cache.
            seed=time.time_ns(),
        )

    def _sent(self) -> int:
        """The most requests that can have been sent by now."""
        return self._sent_before + bisect_right(self._due_s, time.monotonic() - self._begin)

    async def begin(self) -> None:
        """Check for other traffic first."""
        await self._observer.wait_until_empty()
        await self._observer.begin()

    async def keep(self, rps: float, number: int, again: bool) -> Rate:
        """Keep one rate and return its result, with no request left under way."""
        method = self._plan.method
        for_s = duration_s(rps, self._plan.step_s, again, method)
        planned = arrivals(rps, for_s, self._random, self._sent_before, *self._tokens)
        records: list[Record] = []
        stop = asyncio.Event()
        self._due_s = [request.at_s for request in planned]
        self._begin = time.monotonic() + method.lead_s
        cut = asyncio.get_running_loop().call_later(method.lead_s + for_s + self._grace_s(), stop.set)

        def figures() -> str:
            left_s = max(0.0, self._begin + for_s - time.monotonic())
            return f"{len(records)} of {len(planned)} requests answered, {left_s:.0f} s left"

        self._observer.show(f"rate {number}: {rps:.3g} requests/s", figures)
        try:
            async with self._observer.running():
                kept = await drive(planned, self._target, Client(), self._begin, records.append, stop)
        except ExceptionGroup as failures:
            raise first_of(failures) from None
        finally:
            cut.cancel()
        self._sent_before += len(planned)
        self._due_s = []
        broken = next((record for record in records if record.outcome in ("failed", "broken")), None)
        if broken is not None:
            raise MeasurementError(
                f"a request of {rps:.3g} a second {broken.outcome}"
                f"{f' with status {broken.status}' if broken.status else ''}: {broken.error}"
            )
        name = self._measured.model
        check_alone(name, await self._server.readiness(name), self._measured.knobs)
        if stop.is_set():
            await self._observer.wait_until_empty()
        return judge(rps, for_s, records, kept, self._wanted, method)

    def _grace_s(self) -> float:
        ttft_s, itl_s = self._wanted.ttft_s or 0.0, self._wanted.itl_s or 0.0
        return max(self._plan.method.least_grace_s, _GRACE_TARGETS * (ttft_s + itl_s * self._tokens[1]))
