"""The scenario of a replay: its traffic, hardware, knobs and random events."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from replay.defaults import GOAL, KNOBS, PROFILE
from replay.fleet.conditions import Conditions, rules
from replay.fleet.fleet import Fleet
from replay.policies import Static
from replay.profile import Profile, load_profile
from replay.result import Result
from replay.simulation import Controller, Sampled, simulate
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError
from traces.backlog import Backlog
from traces.trace import Chunk, Trace, part, without_background

_SHARED_KNOBS = (
    "min_replicas",
    "max_replicas",
    "ttft_target_s",
    "ttft_percentile",
    "itl_target_s",
    "max_held_requests",
    "drain_move_after_s",
)
"""The knobs that bear on every policy: bounds, targets, and the queue of the ingress."""
_FIRST_S = 600.0
_MOST_FIRST_REQUESTS = 50_000


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything but the policy."""

    trace: Trace
    knobs: Knobs
    profile: Profile
    conditions: Conditions
    initial: int | None
    """Replicas ready at the start, if given."""
    backlog: Backlog | None = None
    """The backlog in the trace, whose deadlines are checked."""

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and most replicas that a policy may ask for."""
        return self.knobs.min_replicas, self.knobs.max_replicas

    def warm(self) -> int:
        """Replicas ready at the start: as given, or as the first ten minutes need (`first_fleet`)."""
        least, most = self.bounds
        replicas = first_fleet(self) if self.initial is None else self.initial
        return min(max(replicas, least), most, self.conditions.capacity or most)

    def run(
        self,
        controller: Controller,
        *,
        warm: int,
        conditions: Conditions | None = None,
        settings: dict[str, Any] | None = None,
        progress: Callable[[float], None] | None = None,
        fleet: Fleet | None = None,
    ) -> Result:
        """Replay `controller`, which has fresh memory, with `warm` replicas ready at the start.

        `fleet` replaces a new fleet of the profile. `settings` are the policy's settings for the result; by
        default the knobs that bear on every policy.
        """
        result = simulate(
            self.trace,
            controller,
            self.profile,
            conditions or self.conditions,
            bounds=self.bounds,
            initial=warm,
            percentile=float(self.knobs.ttft_percentile),
            backlog=self.backlog,
            progress=progress,
            fleet=fleet,
        )
        known = self.knobs.model_dump(mode="json")
        return replace(result, knobs=settings or {name: known[name] for name in _SHARED_KNOBS})


def scenario(
    trace: Trace,
    *,
    knobs: Knobs | None = None,
    profile: Profile | None = None,
    cold_start_s: tuple[float, float] | None = None,
    seed: int = 0,
    initial: int | None = None,
    routing: str = "prefix-aware",
    capacity: int | None = None,
    start_failures: float = 0.0,
    backlog: Backlog | None = None,
) -> Scenario:
    """The scenario that these options of `replay.run.replay` describe.

    Raises SettingsError naming each option that is out of its bounds, its value and the bounds.
    """
    # Knobs in mode `advise` would leave the fleet as it is, and their operator asks what it would do.
    knobs = (knobs or KNOBS).model_copy(update={"mode": "act"})
    profile = profile or load_profile(PROFILE)
    problems = [] if seed >= 0 else [f"seed = {seed}: must be at least 0"]
    if initial is not None and not 0 <= initial <= knobs.max_replicas:
        problems.append(f"initial = {initial}: must be from 0 to max_replicas = {knobs.max_replicas}")
    conditions = Conditions(
        ttft_target_s=knobs.ttft_target_s,
        itl_target_s=knobs.itl_target_s,
        cold_start_s=cold_start_s if cold_start_s is not None else profile.cold_start_s,
        warm_node_start_s=profile.warm_node_start_s,
        warm_nodes=profile.warm_nodes,
        seed=max(seed, 0),
        routing=routing,
        prefill_groups=knobs.prefill_groups,
        max_held=knobs.max_held_requests,
        drain_move_after_s=knobs.drain_move_after_s,
        start_failures=start_failures,
        capacity=capacity,
        block_tokens=trace.block_tokens,
        background_step_s=knobs.background_step_s,
    )
    problems += conditions.problems()
    if problems:
        raise SettingsError(problems)
    try:
        rules(profile, conditions)
    except ValueError as error:
        raise SettingsError([f"profile {profile.name}: {error}"]) from None
    return Scenario(trace, knobs, profile, conditions, initial, backlog)


class _FirstRequests:
    """The first requests of a trace without those of the lane `background`, as a trace."""

    def __init__(self, trace: Trace) -> None:
        self.name = trace.name
        self.block_tokens = trace.block_tokens
        self._chunks: list[Chunk] = []
        count = 0
        for chunk in map(without_background, trace.chunks()):
            taken = min(int(chunk.arrival_s.searchsorted(_FIRST_S)), _MOST_FIRST_REQUESTS - count)
            if taken:
                self._chunks.append(part(chunk, 0, taken))
            count += taken
            if taken < len(chunk):
                break

    def chunks(self) -> Iterator[Chunk]:
        return iter(self._chunks)

    def progress(self) -> float:
        return 1.0

    def __bool__(self) -> bool:
        return bool(self._chunks)


def first_fleet(asked: Scenario) -> int:
    """The least static fleet that attains 99 % in the first ten minutes; 0 without arrivals there.

    A recorded window is cut from traffic that was being served. A policy that began it with no replica would
    be charged one cold start too many. If even `max_replicas` do not attain 99 %, the result is
    `max_replicas`.
    """
    first = _FirstRequests(asked.trace)
    if not first:
        return 0
    most = asked.bounds[1]

    def attained(replicas: int) -> float:
        return simulate(
            first,
            Sampled(Static(replicas)),
            asked.profile,
            asked.conditions,
            bounds=(0, most),
            initial=replicas,
            percentile=float(asked.knobs.ttft_percentile),
        ).attainment

    if attained(most) < GOAL:
        return most
    return 1 + bisect_left(range(1, most), GOAL, key=attained)
