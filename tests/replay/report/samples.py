"""Results of real replays of an hour with a silence, bursts and cold starts, by three policies."""

from dataclasses import replace
from functools import cache

from replay.result import Percentiles, Result
from replay.run import replay
from serve_app.settings.knobs import Knobs
from tests.replay.controllers import NoRequests, waves

KNOBS = Knobs(min_replicas=0, max_replicas=8, downscale_to_zero_delay_s=60)
PHASES = ((2.0, 600.0), (0.0, 600.0), (12.0, 300.0), (25.0, 60.0), (5.0, 600.0), (0.0, 540.0), (8.0, 300.0))
"""(requests a second, seconds)."""


@cache
def realistic() -> tuple[Result, ...]:
    """The production policy, Ray Serve's, and a static fleet; the first knows of the others and an oracle."""
    policies = ("ours", "ray:5", "static:8")
    first, *others = (replay(waves(PHASES), policy=policy, knobs=KNOBS, initial=0) for policy in policies)
    oracle = 0.8 * first.gpu_seconds.total
    peers = {other.policy: other.summary() for other in others}
    peers["oracle"] = peer(oracle, 0.9903, 0.997)
    peers["dynamo"] = peer(0.5 * oracle, 0.02, 0.11)
    results = (replace(first, peers=peers, preemptions=3, failed_starts=1), *others)
    return tuple(replace(result, oracle_gpu_seconds=oracle) for result in results)


def peer(gpu_seconds: float, attainment: float, ttft_ok: float) -> dict[str, float]:
    """A peer's figures without those of its fleet."""
    return {"gpu_seconds": gpu_seconds, "attainment": attainment, "ttft_ok": ttft_ok}


def empty() -> Result:
    """A replay of nothing at all, without a single latency."""
    nothing = Percentiles(0, float("nan"), (float("nan"),) * 4)
    latencies = dict.fromkeys(("ttft", "ttft_warm", "ttft_cold", "itl", "e2e"), nothing)
    result = replay(NoRequests(), policy="static:1", initial=0)
    return replace(result, **latencies, attainment_warm=float("nan"), price_per_gpu_hour=0.0)  # type: ignore[arg-type]
