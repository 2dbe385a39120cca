"""One replay of the benchmark, in a process of its own."""

from __future__ import annotations

from dataclasses import asdict

from benchmarks.autoscaling.plan import Job
from benchmarks.autoscaling.prior import replay_with_prior
from benchmarks.autoscaling.sources import code
from benchmarks.autoscaling.store import Run
from replay.profile_files import load_profile
from replay.result import PERCENTILES, Percentiles, Result
from replay.run import replay


def execute(job: Job) -> Run:
    """Replay `job`.

    Raises:
        TraceError: for a line of the window that is no request.
    """
    result = _result(job)
    gpu = result.gpu_seconds
    seconds = {"gpu_seconds": gpu.total, **asdict(gpu)}
    shares = ("attainment", "attainment_warm", "ttft_ok", "ttft_ok_warm", "infeasible")
    counts = ("requests", "rejected", "starts", "changes", "peak")
    return Run(
        window=job.window.name,
        policy=job.policy,
        variant=job.variant.name,
        seed=job.seed,
        name=result.policy,
        **{name: round(value, 1) for name, value in seconds.items()},
        **{name: round(getattr(result, name), 6) for name in shares},
        **{name: getattr(result, name) for name in counts},
        cold=result.ttft_cold.count,
        ttft_p95_s=_p95(result.ttft),
        ttft_cold_p95_s=_p95(result.ttft_cold),
        itl_p95_s=_p95(result.itl),
        wall_s=round(result.wall_s, 2),
        code=code(),
    )


def _result(job: Job) -> Result:
    trace, variant = job.window.open(), job.variant
    profile = load_profile(variant.profile)
    if variant.prior != 1.0:
        return replay_with_prior(trace, variant.prior, profile, job.seed)
    return replay(trace, policy=job.policy, profile=profile, cold_start_s=variant.cold_start_s, seed=job.seed)


def _p95(latency: Percentiles) -> float:
    return round(latency.at_s[PERCENTILES.index(95.0)], 6)
