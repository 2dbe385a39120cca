"""One replay of the benchmark, in a process of its own."""

from __future__ import annotations

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
    return Run(
        window=job.window.name,
        policy=job.policy,
        variant=job.variant.name,
        seed=job.seed,
        name=result.policy,
        gpu_seconds=round(gpu.total, 1),
        serving=round(gpu.serving, 1),
        idle=round(gpu.idle, 1),
        warming=round(gpu.warming, 1),
        draining=round(gpu.draining, 1),
        attainment=round(result.attainment, 6),
        attainment_warm=round(result.attainment_warm, 6),
        ttft_ok=round(result.ttft_ok, 6),
        ttft_ok_warm=round(result.ttft_ok_warm, 6),
        infeasible=round(result.infeasible, 6),
        requests=result.requests,
        cold=result.ttft_cold.count,
        rejected=result.rejected,
        ttft_p95_s=_p95(result.ttft),
        ttft_cold_p95_s=_p95(result.ttft_cold),
        itl_p95_s=_p95(result.itl),
        starts=result.starts,
        changes=result.changes,
        peak=result.peak,
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
