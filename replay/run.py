"""`replay`: run a policy on recorded traffic and return what it did and cost."""

from bisect import bisect_left
from collections.abc import Callable

from replay.defaults import GOAL, ORACLE, OURS, STATIC
from replay.hindsight.oracle import oracle
from replay.policies import Autoscaler, Engines, SpecError, Static, make, names
from replay.production import Production
from replay.profile import Profile
from replay.result import Result
from replay.scenario import Scenario, scenario
from replay.simulation import Sampled
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError
from traces.backlog import Backlog
from traces.trace import Trace

Progress = Callable[[float], None]


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
    backlog: Backlog | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run `policy` against a simulated fleet under the requests of `trace`.

    Args:
        trace: Recorded requests; read several times for `oracle` and `static`.
        policy: `ours`, the production policy with `knobs`; a baseline by its specification, such as `ray:5`
            or `static:8` (`replay.policies`); `static`, the least `static:N` that attains 99 %; or `oracle`,
            which knows the future.
        knobs: Bounds, targets and percentile for every policy, and all other settings of `ours`, which acts
            even with `mode: advise`. By default from 0 to 32 replicas, and defaults.
        profile: The hardware of one replica; an A100 by default.
        cold_start_s: Least and most seconds of a cold start; by default those of the profile.
        seed: Seed of cold starts, failures and routing. Equal seeds give equal results.
        initial: Replicas ready at the start. By default the least static fleet that attains 99 % in the first
            ten minutes (`first_fleet`), the same for every policy. A static fleet is complete from the start,
            and the oracle begins with what it needs and pays for starts beyond those of the others.
        routing: One of `fleet.conditions.ROUTINGS`; `prefix-aware` is the ingress's.
        capacity: Replicas the cluster has room for; those beyond wait. None: no limit.
        start_failures: Share of starts that fail.
        backlog: The backlog that `trace` has (`traces.backlog.WithBacklog`), to check its deadlines.
        progress: Called now and then with the share that is done, 0 to 1.

    Raises:
        SettingsError: for an option out of its bounds.
        SpecError: for a policy that does not exist, or is given a setting it does not take.
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
        backlog=backlog,
    )
    return run(asked, policy, progress)


def run(asked: Scenario, policy: str, progress: Progress | None = None) -> Result:
    """Run `policy` in a scenario. See `replay` for the policies and the errors."""
    if policy == OURS:
        settings = asked.knobs.model_dump(mode="json")
        return asked.run(Production(asked.knobs), warm=asked.warm(), settings=settings, progress=progress)
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


def static(asked: Scenario, replicas: int, progress: Progress | None = None) -> Result:
    """A fixed number of replicas, ready at the start unless the scenario says how many are."""
    warm = min(replicas, asked.conditions.capacity or replicas)
    if asked.initial is not None:
        warm = asked.warm()
    return asked.run(Sampled(Static(replicas)), warm=warm, progress=progress)


def least_static(asked: Scenario, progress: Progress | None = None) -> Result:
    """The least fixed number of replicas that attains `GOAL`, by bisection between the bounds.

    All of them are ready at the start. If even the most replicas do not attain it, the result is the least
    number that attains as much as those do.
    """
    least, most = max(asked.bounds[0], 1), asked.bounds[1]
    turns = (most - least).bit_length() + 1
    results: dict[int, Result] = {}

    def share(part: float) -> None:
        if progress is not None:
            progress(min((len(results) + part) / turns, 1.0))

    def attained(replicas: int) -> float:
        results[replicas] = static(asked, replicas, share)
        return results[replicas].attainment

    goal = min(GOAL, attained(most))
    found = least + bisect_left(range(least, most), goal, key=attained)
    if progress is not None:
        progress(1.0)
    return results[found]
