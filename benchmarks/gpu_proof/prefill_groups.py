"""Stage `prefill-groups`: what it costs running streams when prompts come one by one, and what in groups.

The ingress sends streams in prefill groups because a step that prefills delays every running stream, however
many prompts it prefills (`serve_app/ingress/replica_choice.py`). With one replica the ingress has no choice,
so here the load does what the pick does among several: the same requests, alone or four together.
"""

from typing import Any

from benchmarks.gpu_proof.bench import Bench, plain
from benchmarks.gpu_proof.capacity import known_rate
from benchmarks.gpu_proof.loads import at_times, drive, figures, late_share, poisson
from serve_app.ingress.replica_choice import GROUP_REQUESTS

_USUAL_S, _LEAST_S = 25.0, 8.0
_SHARES = (0.6, 0.9)
"""Of the capacity."""


def prefill_groups(bench: Bench) -> dict[str, Any]:
    """Measure late tokens and latencies at equal rates, alone and in groups of `GROUP_REQUESTS`."""
    url = bench.url(bench.model())
    for_s = bench.seconds(_USUAL_S, _LEAST_S)
    rows = []
    for seed, share in enumerate(_SHARES):
        rate = share * known_rate(bench)
        for together in (1, GROUP_REQUESTS):
            bench.say(f"{rate:.3g} requests/s, {together} at a time")
            planned = at_times(poisson(rate, for_s, seed, together), *bench.tokens)
            done = drive(url, planned, for_s, 100 * together + seed)
            late = late_share(done, bench.targets["itl_target_s"])
            rows.append(
                {"rps": plain(rate), "together": together, "late_tokens": plain(late), **figures(done)}
            )
    return {
        "itl_target_s": bench.targets["itl_target_s"],
        "rows": rows,
        "left out": "the pick itself among several replicas: this proof has one",
    }
