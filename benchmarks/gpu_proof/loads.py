"""Loads on the server of a stage, and what came of them."""

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.gpu_proof.bench import NAME, plain
from loadtests.client import drive as client
from loadtests.client.prompts import Target
from loadtests.columns import Columns, Percentiles
from loadtests.plan import Planned
from loadtests.record import Record, Run, Timekeeping
from loadtests.scenario import Scenario
from loadtests.summary import summarize
from loadtests.verdicts import judge

_LEAD_S = 0.5
"""From planning a load to its first request, in which the client draws prompts and opens its session."""


def at_times(
    times: Iterable[float], prompt_tokens: int, output_tokens: int, shared_tokens: int = 0
) -> tuple[Planned, ...]:
    """Return a request for each of `times`, seconds; their prompts begin with the same `shared_tokens`."""
    return tuple(
        Planned(index, at_s, NAME, None, "completions", prompt_tokens, output_tokens, shared_tokens)
        for index, at_s in enumerate(sorted(times))
    )


def poisson(rate: float, for_s: float, seed: int, together: int = 1) -> list[float]:
    """Return the times of `rate` requests a second that come in groups of `together`, groups at random."""
    draw = random.Random(seed)
    groups = max(1, round(rate * for_s / together))
    return [at for _ in range(groups) for at in [draw.uniform(0.0, for_s)] * together]


def drive(url: str, planned: Sequence[Planned], for_s: float) -> Run:
    """Send requests at their times to the proof's model, and return what came of each."""
    document = {
        "name": NAME,
        "arrivals": [{"shape": "steady", "for_s": for_s, "rate": max(len(planned) / for_s, 1e-3)}],
        "requests": [{"kind": NAME}],
    }
    scenario = Scenario.model_validate(document)
    # Of a seed that came twice, the replica would find the prompts in its prefix cache.
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


def figures(done: Run) -> dict[str, Any]:
    """Return percentiles in seconds, errors, and the verdict by the SLOs of a GPU."""
    summary = summarize(done)
    verdicts = judge(done, summary)
    return {
        "requests": summary.counts.requests,
        "errors": summary.counts.errors,
        "latencies_s": {name: _percentiles(found) for name, found in summary.latencies.named()},
        "meets_slos": verdicts.overall == "pass",
        "verdict": verdicts.words,
        "missed": [verdict.words for verdict in verdicts.verdicts if verdict.ok is False],
    }


def late_share(done: Run, target_s: float) -> float:
    """Return the share of tokens that came more than `target_s` after the one before."""
    gaps = Columns.of(done.records).gap_s
    return float(np.mean(gaps > target_s)) if len(gaps) else 0.0


def _percentiles(found: Percentiles) -> Any:
    return plain(asdict(found))
