"""Stage `slo`: latencies at the measured capacity, and the largest rate that meets the whole SLO table."""

from typing import Any

from benchmarks.gpu_proof.bench import Bench, plain
from benchmarks.gpu_proof.capacity import known_rate
from benchmarks.gpu_proof.loads import at_times, drive, figures, poisson
from benchmarks.gpu_proof.search import largest_rate
from loadtests.scenario import Slos

_USUAL_S, _LEAST_S = 20.0, 3.0
_TRIES = 6
"""They tell the rate to within a fifth, if it is not below a quarter of the capacity."""


def slo(bench: Bench) -> dict[str, Any]:
    """Send Poisson arrivals at the capacity, then search the largest rate that meets the table."""
    url = bench.url(bench.model())
    for_s = bench.seconds(_USUAL_S, _LEAST_S)
    tried: list[dict[str, Any]] = []

    def meets(rate: float) -> bool:
        bench.say(f"SLO table at {rate:.3g} requests/s")
        planned = at_times(poisson(rate, for_s, seed=len(tried)), *bench.tokens)
        tried.append({"rps": plain(rate), **figures(drive(url, planned, for_s))})
        return bool(tried[-1]["meets_slos"])

    held = largest_rate(meets, known_rate(bench), _TRIES)
    return {
        "table": Slos().model_dump(mode="json"),
        "at_capacity": tried[0],
        "largest_rate_that_meets_it": plain(held),
        "tried": tried,
    }
