"""Runs of the autoscaling benchmark without replays. Imports little: worker processes import it."""

from pathlib import Path

from benchmarks.autoscaling.plan import Job
from benchmarks.autoscaling.store import Run
from benchmarks.autoscaling.windows import Window
from replay.defaults import ORACLE, OURS, STATIC

COSTS = {OURS: 1200.0, ORACLE: 1000.0, STATIC: 2000.0, "ray": 3000.0}


def window(name: str = "calm", peak_to_mean: float = 1.5) -> Window:
    return Window(name, Path(f"{name}.csv"), "0123", None, 1000, 3600.0, peak_to_mean, 0.0)


def run(job: Job) -> Run:
    cost = COSTS.get(job.policy, 2500.0) + job.seed
    return Run(
        window=job.window.name, policy=job.policy, variant=job.variant.name, seed=job.seed,
        name="static:7" if job.policy == STATIC else job.policy,
        gpu_seconds=cost, serving=cost, idle=0.0, warming=0.0, draining=0.0,
        attainment=0.995, attainment_warm=0.999, ttft_ok=0.99, ttft_ok_warm=0.995, infeasible=0.01,
        requests=1000, cold=5.0, rejected=0, ttft_p95_s=0.1, ttft_cold_p95_s=40.0, itl_p95_s=0.02,
        starts=4, changes=8, peak=7, wall_s=1.0, code="abc",
    )  # fmt: skip


def failing(job: Job) -> Run:
    if job.policy == "wva":
        raise RuntimeError("no luck")
    return run(job)
