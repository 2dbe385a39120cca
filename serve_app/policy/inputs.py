"""All that a decision is made from, as plain numbers: what is reported, and what has been learned."""

from dataclasses import dataclass

from serve_app.policy.capacity_model import Feasibility, Sizing
from serve_app.policy.measured import Measured
from serve_app.policy.observation import Observation
from serve_app.policy.snapshot import Snapshot
from serve_app.settings.knobs import Knobs

_STARTS_HELD = 4.0
_SHORTEST_HOLD_S = 10.0
_LONGEST_HOLD_S = 60.0
"""With starts of 75 s, holds of 90, 180 and 300 s were no better: `benchmarks/autoscaling/tried.md`."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The requests that arrive, per second."""

    rps: float
    """The higher of the rates over a start and over half of it."""
    over_s: float
    """The seconds over which that was read."""
    window_s: float
    """The longer of the two."""
    felt_rps: float
    """Of the longer one as its requests felt it: those in clumps wait for each other."""
    last_30s_rps: float
    last_60s_rps: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What demand may come to until a replica that is asked for now is there, in requests per second."""

    rps: float
    quantile: float
    """The share of past requests by which the following are read."""
    rise: float
    """So far had demand risen, or less."""
    alike: bool
    """Whether `rise` is that from a demand like this one, and not from wherever it was."""
    most: float
    """So high had demand been, or lower."""
    unsure_rps: float
    """Of `rps`, what is added because little is known."""
    known_minutes: float


@dataclass(frozen=True, slots=True)
class Need:
    """The replicas that the load needed at `at`."""

    at: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """One model at `now`, Unix time in seconds."""

    snapshot: Snapshot
    knobs: Knobs
    now: float
    seen: Observation
    measured: Measured
    sizing: Sizing
    alone: Feasibility
    """What an empty replica reaches."""
    steps_learned: float
    """The steps that `sizing` follows from; 0 if from a prior."""
    interference: float
    """Late tokens measured over late tokens expected."""
    arrivals: Arrivals
    forecast: Forecast | None
    """None where knobs want none."""
    standing_requests: float
    """Requests that have waited throughout `upscale_delay_s`, and so do not clear by themselves."""
    standing_tokens: float
    waking_s: float
    """Seconds for which replicas have been starting with none ready."""
    idle_s: float | None
    """Seconds for which the model has been idle; None if it is not known to be."""
    observed_s: float
    """Seconds for which the policy has observed the model since a start or a loss of memory."""
    rise_s: float
    """Seconds of traffic in which the forecast can first see a rise; 0 without one."""
    peaks: tuple[Need, ...]
    """What the load has needed: falling, each entry the most since its time."""

    @property
    def current(self) -> int:
        """The target in force, within the bounds."""
        return min(max(self.snapshot.target, self.knobs.min_replicas), self.knobs.max_replicas)

    @property
    def hold_s(self) -> float:
        """Seconds for which fewer replicas must have been enough: `downscale_delay_s`, or four starts.

        A replica that is kept for less than it takes to start one costs less than starting it again. Four
        times as long, because the start is paid in late requests as well.
        """
        given = self.knobs.downscale_delay_s
        starts_s = _STARTS_HELD * self.snapshot.horizon_s
        return given if given is not None else min(max(starts_s, _SHORTEST_HOLD_S), _LONGEST_HOLD_S)

    @property
    def unobserved_s(self) -> float:
        """Seconds for which the policy must still observe the model before it removes a replica.

        A lull of a minute says nothing about traffic that the policy has not observed, and before it has seen
        how much demand rises while a replica starts it cannot tell which replica it will want back.
        """
        return max(self.hold_s, self.knobs.downscale_to_zero_delay_s, self.rise_s) - self.observed_s

    @property
    def silent(self) -> bool:
        """Whether too few report: an ingress replica does not, or most engine replicas do not.

        Nothing may be removed then. Fewer engine replicas are stood in for by the others: see `observe`.
        """
        return 2 * self.seen.unknown_engines > self.snapshot.ready or not self.seen.ingress_known
