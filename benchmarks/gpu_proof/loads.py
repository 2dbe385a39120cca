"""Loads on the server of a stage, and the client's figures."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.gpu_proof.bench import NAME, Bench, plain
from loadtests.client import drive as client
from loadtests.client.prompts import Target
from loadtests.columns import Columns
from loadtests.plan import Planned
from loadtests.record import Record, Run, Timekeeping
from loadtests.scenario import Scenario
from loadtests.summary import summarize
from loadtests.verdicts import judge

_LEAD_S = 0.5
"""From planning a load to its first request, in which the client draws prompts and opens its session."""


def load(bench: Bench, url: str, rate: float, for_s: float, seed: int, together: int = 1,
         prompt_tokens: int = 0, shared_tokens: int = 0) -> dict[str, Any]:  # fmt: skip
    """Send requests at random times, and return rate, percentiles in seconds, errors and the SLO verdict.

    Args:
        bench: The proof.
        url: Of its server.
        rate: Requests a second.
        for_s: Seconds.
        seed: Of the times.
        together: Requests that come at the same moment.
        prompt_tokens: By default those of the bench.
        shared_tokens: Tokens at the beginning that all prompts share.
    """
    prompt, output = bench.tokens
    times = poisson(rate, for_s, seed, together)
    done = drive(url, at_times(times, prompt_tokens or prompt, output, shared_tokens), for_s)
    summary = summarize(done)
    gaps = Columns.of(done.records).gap_s
    late = float(np.mean(gaps > bench.targets["itl_target_s"])) if len(gaps) else 0.0
    return {
        "rps": plain(rate),
        "late_tokens": plain(late),
        "requests": summary.counts.requests,
        "errors": summary.counts.errors,
        "latencies_s": {name: plain(asdict(found)) for name, found in summary.latencies.named()},
        "meets_slos": judge(done, summary).overall == "pass",
    }


def poisson(rate: float, for_s: float, seed: int, together: int = 1) -> list[float]:
    """Return the times of `rate` requests a second that come in groups of `together`, groups at random."""
    draw = random.Random(seed)
    groups = max(1, round(rate * for_s / together))
    return [at for _ in range(groups) for at in [draw.uniform(0.0, for_s)] * together]


def at_times(
    times: Iterable[float], prompt_tokens: int, output_tokens: int, shared_tokens: int = 0
) -> tuple[Planned, ...]:
    """Return a request for each of `times`, seconds; their prompts begin with the same `shared_tokens`."""
    return tuple(
        Planned(index, at_s, NAME, None, "completions", prompt_tokens, output_tokens, shared_tokens)
        for index, at_s in enumerate(sorted(times))
    )


def drive(url: str, planned: Sequence[Planned], for_s: float) -> Run:
    """Send requests at their times to the proof's model, and return the record of each."""
    document = {
        "name": NAME,
        "arrivals": [{"shape": "steady", "for_s": for_s, "rate": max(len(planned) / for_s, 1e-3)}],
        "requests": [{"kind": NAME}],
    }
    scenario = Scenario.model_validate(document)
    # With a seed that came twice, the replica would find the prompts in its prefix cache.
    target = Target(url=url, headers={}, model=NAME, seed=time.time_ns())
    records: list[Record] = []
    began = time.time() + _LEAD_S

    async def send() -> Timekeeping:
        begin = time.monotonic() + _LEAD_S
        return await client.drive(planned, target, scenario.client, begin, records.append, asyncio.Event())

    kept = asyncio.run(send())
    return Run(
        scenario=scenario.model_dump(mode="json"),
        scenario_hash=scenario.digest(),
        url=url,
        began=began,
        duration_s=time.time() - began,
        records=tuple(sorted(records, key=lambda record: record.index)),
        samples=(),
        decisions=(),
        timekeeping=kept,
    )


def largest_rate(holds: Callable[[float], bool], first: float, tries: int) -> float | None:
    """Return the largest rate tried at which `holds` is true; None if it never is.

    The search begins with `first`, doubles or halves until a rate that holds and one that does not are known,
    and then tries the geometric mean of the two.
    """
    kept, missed = 0.0, math.inf
    rate = first
    for _ in range(tries):
        if holds(rate):
            kept = rate
        else:
            missed = rate
        if kept == 0.0:
            rate = missed / 2.0
        elif missed == math.inf:
            rate = kept * 2.0
        else:
            rate = math.sqrt(kept * missed)
    return kept or None
