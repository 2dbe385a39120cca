"""Stage `prefill-groups`: what it costs running streams when prompts come one by one, and what in groups.

The ingress sends streams in prefill groups because a step that prefills delays every running stream, however
many prompts it prefills (`serve_app/ingress/replica_choice.py`). That is measured on one replica, with the
same requests alone and four together. With several GPUs the pick itself is measured too: the same load on
several replicas, with the knob `prefill_groups` on and off.
"""

from typing import Any

from benchmarks.gpu_proof.bench import Bench, plain
from benchmarks.gpu_proof.capacity import known_rate
from benchmarks.gpu_proof.loads import at_times, drive, figures, late_share, poisson
from benchmarks.gpu_proof.search import largest_rate
from serve_app.ingress.replica_choice import GROUP_REQUESTS

_USUAL_S, _LEAST_S = 15.0, 3.0
_SHARE = 0.8
"""Of the capacity: the rate at which alone and together, on and off, are compared."""
_LATE_SHARE = 0.05
"""Of the tokens that may be late at the capacity, as the policy sizes fleets: P95 within the ITL target."""
_TRIES = 4
_MOST_REPLICAS = 4


def prefill_groups(bench: Bench) -> dict[str, Any]:
    """Measure late tokens, latencies and the capacity at the ITL target, without groups and with them."""
    model, rate = bench.model(), _SHARE * known_rate(bench)
    url = bench.url(model)
    rows = [
        {"how": how, **_load(bench, url, rate, together, seed=together)}
        for how, together in (("alone", 1), (f"{GROUP_REQUESTS} together", GROUP_REQUESTS))
    ]
    found: dict[str, Any] = {"itl_target_s": bench.targets["itl_target_s"], "rows": rows}
    # On a CPU two replicas share the cores, which a rehearsal may.
    replicas = min(_MOST_REPLICAS, len(bench.machine["gpus"])) if bench.on_gpu else 2
    if replicas < 2:
        return found | {"left out": "the pick among several replicas, which takes two GPUs"}
    found |= {"replicas": replicas, "capacity_rps": {}}
    for grouped in (True, False):
        how = f"{replicas} replicas, prefill_groups {'on' if grouped else 'off'}"
        bounds = {"min_replicas": replicas, "max_replicas": replicas}
        url = bench.url(model, {**bounds, **bench.targets, "prefill_groups": grouped})
        rows.append({"how": how, **_load(bench, url, replicas * rate, 1, seed=10)})
        found["capacity_rps"]["on" if grouped else "off"] = plain(_capacity(bench, url, replicas, rows, how))
    return found


def _capacity(bench: Bench, url: str, replicas: int, rows: list[dict[str, Any]], how: str) -> float | None:
    """The largest rate at which few enough tokens are late and nothing fails."""

    def holds(rate: float) -> bool:
        rows.append({"how": how, **_load(bench, url, rate, 1, seed=20 + len(rows))})
        return bool(rows[-1]["late_tokens"] <= _LATE_SHARE and not rows[-1]["errors"])

    return largest_rate(holds, replicas * known_rate(bench), _TRIES)


def _load(bench: Bench, url: str, rate: float, together: int, seed: int) -> dict[str, Any]:
    for_s = bench.seconds(_USUAL_S, _LEAST_S)
    bench.say(f"{rate:.3g} requests/s, {together} at a time")
    done = drive(url, at_times(poisson(rate, for_s, seed, together), *bench.tokens), for_s)
    late = late_share(done, bench.targets["itl_target_s"])
    return {"rps": plain(rate), "late_tokens": plain(late), **figures(done)}
