"""The scenario of a replay: its traffic, hardware, knobs and random events."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from replay.controller import Controller
from replay.defaults import KNOBS, LONGEST_COLD_START_S, MOST_REPLICAS, PROFILE
from replay.first_fleet import first_fleet
from replay.fleet.conditions import ROUTINGS, Conditions, rules
from replay.profile import Profile
from replay.profile_files import load_profile
from replay.result import Result
from replay.simulation import simulate
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError, shown
from traces.trace import Trace

MOST_START_FAILURES = 0.9
_OF_ALL = (
    "min_replicas",
    "max_replicas",
    "ttft_target_s",
    "ttft_percentile",
    "itl_target_s",
    "max_held_requests",
    "drain_move_after_s",
)
"""The knobs that bear on every policy: bounds, targets, and what the ingress holds."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything but the policy."""

    trace: Trace
    knobs: Knobs
    profile: Profile
    conditions: Conditions
    initial: int | None
    """Replicas ready at the start, where they were given."""

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and most replicas that a policy may ask for."""
        return self.knobs.min_replicas, self.knobs.max_replicas

    def warm(self) -> int:
        """Replicas ready at the start: those given, or what the first minutes need; see `first_fleet`."""
        least, most = self.bounds
        replicas = self.initial
        if replicas is None:
            percentile = float(self.knobs.ttft_percentile)
            replicas = first_fleet(self.trace, self.profile, self.conditions, most, percentile)
        return min(max(replicas, least), most, self.conditions.capacity or most)

    def run(
        self,
        controller: Controller,
        *,
        warm: int,
        conditions: Conditions | None = None,
        settings: dict[str, Any] | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Result:
        """Replay `controller`, with `warm` replicas ready at the start.

        Args:
            controller: The controller, with fresh memory.
            warm: Replicas ready at the start.
            conditions: Conditions other than the scenario's.
            settings: The policy's settings for the result; by default the knobs that bear on every policy.
            progress: Called with the share of the trace that is done.
        """
        result = simulate(
            self.trace,
            controller,
            self.profile,
            conditions or self.conditions,
            bounds=self.bounds,
            initial=warm,
            percentile=float(self.knobs.ttft_percentile),
            progress=progress,
        )
        known = self.knobs.model_dump(mode="json")
        return replace(result, knobs=settings or {name: known[name] for name in _OF_ALL})


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
) -> Scenario:
    """The scenario that these options of `replay.run.replay` describe.

    Raises:
        SettingsError: naming each option that is out of its bounds, its value and the bounds.
    """
    # Knobs in mode `advise` would leave the fleet as it is, and their operator asks what it would do.
    knobs = (knobs or KNOBS).model_copy(update={"mode": "act"})
    profile = profile or load_profile(PROFILE)
    cold_start_s = cold_start_s if cold_start_s is not None else profile.cold_start_s
    least, most = cold_start_s
    checks = (
        (
            0 <= least <= most <= LONGEST_COLD_START_S,
            f"cold_start_s = {shown([least, most])}: must be two numbers from 0 to "
            f"{LONGEST_COLD_START_S:g}, the first at most the second",
        ),
        (seed >= 0, f"seed = {seed}: must be at least 0"),
        (
            initial is None or 0 <= initial <= knobs.max_replicas,
            f"initial = {initial}: must be from 0 to max_replicas = {knobs.max_replicas}",
        ),
        (routing in ROUTINGS, f"routing = {shown(routing)}: must be one of {', '.join(ROUTINGS)}"),
        (
            capacity is None or 1 <= capacity <= MOST_REPLICAS,
            f"capacity = {capacity}: must be from 1 to {MOST_REPLICAS}",
        ),
        (
            0 <= start_failures <= MOST_START_FAILURES,
            f"start_failures = {start_failures:g}: must be from 0 to {MOST_START_FAILURES:g}",
        ),
    )
    problems = [problem for right, problem in checks if not right]
    if problems:
        raise SettingsError(problems)
    conditions = Conditions(
        ttft_target_s=knobs.ttft_target_s,
        itl_target_s=knobs.itl_target_s,
        cold_start_s=cold_start_s,
        warm_node_start_s=profile.warm_node_start_s,
        warm_nodes=profile.warm_nodes,
        seed=seed,
        routing=routing,
        prefill_groups=knobs.prefill_groups,
        max_held=knobs.max_held_requests,
        drain_move_after_s=knobs.drain_move_after_s,
        start_failures=start_failures,
        capacity=capacity,
        block_tokens=trace.block_tokens,
    )
    try:
        rules(profile, conditions)
    except ValueError as error:
        raise SettingsError([f"profile {profile.name}: {error}"]) from None
    return Scenario(trace, knobs, profile, conditions, initial)
