"""Stage `slo`: latencies at the measured capacity, and the largest rate that meets the whole SLO table."""

from typing import Any

from benchmarks.gpu_proof.bench import Bench, plain
from benchmarks.gpu_proof.capacity import known_rate
from benchmarks.gpu_proof.loads import at_times, drive, figures, poisson
from loadtests.scenario import Slos

_USUAL_S, _LEAST_S = 30.0, 8.0
_FIRST_SHARES = (1.0, 0.8, 0.6, 0.4, 0.2)
"""Of the capacity, tried in this order until one meets the table."""


def slo(bench: Bench) -> dict[str, Any]:
    """Send Poisson arrivals at falling shares of the capacity until the table is met."""
    url = bench.url(bench.model())
    for_s = bench.seconds(_USUAL_S, _LEAST_S)
    tried = []
    for seed, share in enumerate(_FIRST_SHARES):
        rate = share * known_rate(bench)
        bench.say(f"SLO table at {rate:.3g} requests/s")
        planned = at_times(poisson(rate, for_s, seed), *bench.tokens)
        tried.append({"rps": plain(rate), **figures(drive(url, planned, for_s, seed))})
        if tried[-1]["meets_slos"]:
            break
    held = tried[-1]["rps"] if tried[-1]["meets_slos"] else None
    return {
        "table": Slos().model_dump(mode="json"),
        "at_capacity": tried[0],
        "largest_rate_that_meets_it": held,
        "tried": tried,
    }
