"""`replay`: run a policy on recorded traffic and return what it did and cost."""

from collections.abc import Callable

from replay.controller import Sampled
from replay.defaults import ORACLE, OURS, STATIC
from replay.hindsight.least_static import least_static, static
from replay.hindsight.oracle import oracle
from replay.laws.registry import Engines, SpecError, make, names
from replay.laws.static import Static
from replay.production import Production
from replay.profile import Profile
from replay.result import Result
from replay.sample import Autoscaler
from replay.scenario import Scenario, scenario
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError
from traces.trace import Trace


def replay(
    trace: Trace,
    *,
    policy: str = OURS,
    knobs: Knobs | None = None,
    profile: Profile | None = None,
    cold_start_s: tuple[float, float] | None = None,
    seed: int = 0,
    initial: int | None = None,
    routing: str = "prefix-aware",
    capacity: int | None = None,
    start_failures: float = 0.0,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Run `policy` against a simulated fleet under the requests of `trace`.

    Args:
        trace: Recorded requests; read several times for `oracle` and `static`.
        policy: `ours`, the production policy with `knobs`; a baseline by its specification, such as `ray:5`
            or `static:8` (see `replay.laws.registry`); `static`, the least `static:N` that
            attains 99 %; or `oracle`, which knows the future.
        knobs: Bounds, targets and percentile for every policy, and all the rest for `ours`, which acts
            even if they say `advise`. By default from 0 to 32 replicas, and defaults.
        profile: What one replica is; an A100 by default.
        cold_start_s: Least and most seconds of a cold start; by default those of the profile.
        seed: Seed of cold starts, failures and routing. Equal seeds give equal results.
        initial: Replicas ready at the start. By default the least static fleet that attains 99 % in the first
            ten minutes (`first_fleet`), the same for every policy; but a static fleet stands from the start,
            and the oracle begins with what it needs and pays the starts of those beyond the others'.
        routing: One of `fleet.conditions.ROUTINGS`; `prefix-aware` is the ingress's.
        capacity: Replicas the cluster has room for; those beyond wait. None: no limit.
        start_failures: Share of starts that fail.
        progress: Called now and then with the share that is done, 0 to 1.

    Raises:
        SettingsError: for an option out of its bounds.
        SpecError: for a policy that does not exist, or is given what it does not take.
        TraceError: for a line of the trace that is no request.
    """
    asked = scenario(
        trace,
        knobs=knobs,
        profile=profile,
        cold_start_s=cold_start_s,
        seed=seed,
        initial=initial,
        routing=routing,
        capacity=capacity,
        start_failures=start_failures,
    )
    return run(asked, policy, progress)


def run(asked: Scenario, policy: str, progress: Callable[[float], None] | None = None) -> Result:
    """Run `policy` in a scenario; `replay` tells what it may be, and what is raised."""
    if policy == OURS:
        return _ours(asked, progress)
    if policy == ORACLE:
        return oracle(asked, progress)
    if policy == STATIC:
        return least_static(asked, progress)
    baseline = _baseline(policy, asked)
    if isinstance(baseline, Static):
        return static(asked, baseline.replicas, progress)
    return asked.run(Sampled(baseline), warm=asked.warm(), progress=progress)


def check_policy(policy: str, asked: Scenario) -> None:
    """Check that `replay` knows `policy`, without replaying anything.

    Raises SpecError if it does not, and SettingsError for a static fleet out of the bounds of the knobs.
    """
    if policy not in (OURS, ORACLE, STATIC):
        _baseline(policy, asked)


def policy_names() -> tuple[str, ...]:
    """The names that a specification may begin with."""
    return (OURS, ORACLE, *names())


def _ours(asked: Scenario, progress: Callable[[float], None] | None) -> Result:
    settings = asked.knobs.model_dump(mode="json")
    return asked.run(Production(asked.knobs), warm=asked.warm(), settings=settings, progress=progress)


def _baseline(policy: str, asked: Scenario) -> Autoscaler:
    name, colon, _ = policy.strip().partition(":")
    if name not in policy_names():
        raise SpecError(f"policy {policy!r}: no such policy; there are {', '.join(policy_names())}")
    if colon and name in (OURS, ORACLE):
        raise SpecError(f"policy {policy!r}: {name} takes no setting")
    profile = asked.profile
    engines = Engines(profile.step, profile.max_num_seqs, profile.max_num_batched_tokens)
    baseline = make(policy, engines)
    least, most = asked.bounds
    if isinstance(baseline, Static) and not least <= baseline.replicas <= most:
        raise SettingsError(
            [
                f"policy = {policy!r}: must be from min_replicas = {least} to max_replicas = {most}, which "
                "bound every policy"
            ]
        )
    return baseline
