"""One replay of the benchmark, in a process of its own."""

import hashlib
from dataclasses import asdict, replace
from functools import cache
from importlib import metadata

from benchmarks import REPOSITORY
from benchmarks.autoscaling.plan import Job
from benchmarks.autoscaling.store import Run
from loadtests.machine import versions
from loadtests.traces.trace import Trace
from replay.defaults import KNOBS
from replay.production import Production
from replay.profile import Profile, load_profile
from replay.result import PERCENTILES, Percentiles, Result
from replay.run import replay
from replay.scenario import scenario
from serve_app.controller.serve_policy import ServePolicy
from serve_app.learning.state import PolicyState
from serve_app.learning.step_time_fit import StepTimeFit
from serve_app.policy.decide import Decision
from serve_app.policy.snapshot import Snapshot
from serve_app.wire.served_models import ServedModel

_FOLDERS = ("serve_app/learning", "serve_app/policy", "replay")
_DISTRIBUTIONS = ("numpy", "numba")
_SUFFIXES = (".py", ".yaml")


@cache
def code() -> str:
    """A digest of the sources that runs depend on."""
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*")):
            if path.suffix in _SUFFIXES and "report" not in path.parts:
                digest.update(f"{path.relative_to(REPOSITORY)}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def library_versions() -> dict[str, str]:
    """Python, the libraries that compute, and the commit."""
    found = versions()
    kept = {name: found[name] for name in ("python", "commit")}
    return {**kept, **{name: metadata.version(name) for name in _DISTRIBUTIONS}, "code": code()}


def scaled_service(factor: float) -> StepTimeFit:
    """The step-time fit before any observation, with every coefficient of its prior times `factor`.

    The prior is held as normal equations with a relative uncertainty: weights go with 1 / value squared, so
    they fall with the square of the factor, and moments, weight times value, with the factor.
    """
    fresh = StepTimeFit()
    return replace(
        fresh,
        gram=tuple(value / factor**2 for value in fresh.gram),
        moment=tuple(value / factor for value in fresh.moment),
    )


@cache
def policy_with_prior(factor: float) -> type[ServePolicy]:
    """`ServePolicy` that begins with a prior wrong by `factor`: 2 takes the hardware for half as fast."""

    class ScaledPrior(ServePolicy):
        """Begins with another prior; learns as usual."""

        def decide(
            self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float
        ) -> tuple[Decision, PolicyState]:
            """Decide, from the scaled prior the first time."""
            if state.last_at is None:
                state = replace(state, service=scaled_service(factor))
            return super().decide(model, snapshot, state, now)

    return ScaledPrior


def replay_with_prior(trace: Trace, factor: float, profile: Profile, seed: int) -> Result:
    """Replay ours with a scaled prior; with a factor of 1 it is what `replay` returns.

    Raises TraceError for a line of the trace that is no request.
    """
    asked = scenario(trace, knobs=KNOBS, profile=profile, seed=seed)
    return asked.run(Production(KNOBS, policy_with_prior(factor)), warm=asked.warm())


def execute(job: Job) -> Run:
    """Replay `job`. Raises TraceError for a line of the window that is no request."""
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
