"""Loads on the server of a stage, and what came of them."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.gpu_proof.bench import plain
from loadtests.columns import Columns
from loadtests.percentiles import Percentiles
from loadtests.planned import Planned
from loadtests.progress import Progress
from loadtests.record import Run
from loadtests.runner import Order, run
from loadtests.scenario import Scenario
from loadtests.summary import summarize
from loadtests.verdicts import judge


class _NoView:
    def show(self, progress: Progress) -> None:
        """Show nothing: a load takes a minute at most, and the stage has said what it is."""


def at_times(
    times: Iterable[float], prompt_tokens: int, output_tokens: int, shared_tokens: int = 0
) -> tuple[Planned, ...]:
    """Return a request for each of `times`, seconds; their prompts begin with the same `shared_tokens`."""
    return tuple(
        Planned(index, at_s, "proof", None, "completions", prompt_tokens, output_tokens, shared_tokens)
        for index, at_s in enumerate(sorted(times))
    )


def poisson(rate: float, for_s: float, seed: int, together: int = 1) -> list[float]:
    """Return the times of `rate` requests a second that come in groups of `together`, groups at random."""
    draw = random.Random(seed)
    groups = max(1, round(rate * for_s / together))
    return [at for _ in range(groups) for at in [draw.uniform(0.0, for_s)] * together]


def drive(url: str, planned: Sequence[Planned], for_s: float, seed: int) -> Run:
    """Send requests at their times, and return what came of each.

    Raises:
        ServerError: if the server cannot take such requests.
    """
    document = {
        "name": "proof",
        "seed": seed,
        "arrivals": [{"shape": "steady", "for_s": for_s, "rate": max(len(planned) / for_s, 1e-3)}],
        "requests": [{"kind": "proof"}],
    }
    order = Order(Scenario.model_validate(document), tuple(planned), for_s, url)
    return asyncio.run(run(order, _NoView()))


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
