"""The policy's memory between decisions: plain data that may be lost or restored at any moment.

If another model gets the name of a deployment, the requests stay the same, so their demand is kept. Step
times, the size of the KV cache and the interference belong to the replaced replicas and are not kept.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, field, fields, replace
from math import inf
from typing import Any, Self

from pydantic import TypeAdapter

from serve_app.policy.capacity_model import Mix, StepTime
from serve_app.policy.demand import Demand
from serve_app.policy.step_time_fit import StepTimeFit
from serve_app.policy.variant_state import VariantMixState
from serve_app.wire.quick_dataclass import quick_dataclass
from serve_app.wire.signals import BYTES_PER_TOKEN

# The mix covers about 120 s, and at least 200 requests. If prompts vary as much as their mean, a mean over
# 200 requests is exact to 7 %. With 300 s, a fleet whose prompts grow eightfold in ten minutes costs a tenth
# more, and misses its ITL target for a minute longer.
_MIX_MEMORY_S = 120.0
_LEAST_MIX_MEMORY = 200.0
# The weight of the model's expectation, in late tokens. A busy replica decodes 1,000 tokens a second and some
# tens are late, so this is half a minute.
_PRIOR_LATE = 1000.0
# Recorded traffic reaches 6. Above that, tokens are late for any size of the fleet, while each added replica
# lowers the expectation. Without a bound the ratio would scale such a fleet to its maximum.
_MOST_INTERFERENCE = 8.0


@quick_dataclass(frozen=True, slots=True)
class MixSums:
    """Fading sums over finished requests and arrivals; the mix is their means."""

    finished: float = 0.0
    prompt_tokens: float = 0.0
    computed_tokens: float = 0.0
    output_tokens: float = 0.0
    arrivals: float = 0.0
    bytes: float = 0.0

    def add(self, new: Self, elapsed_s: float) -> Self:
        """Return the sums with the requests that finished and arrived in the last `elapsed_s` seconds."""
        keep, keep_in = _share_kept(new.finished, elapsed_s), _share_kept(new.arrivals, elapsed_s)
        return replace(
            self,
            finished=self.finished * keep + new.finished,
            prompt_tokens=self.prompt_tokens * keep + new.prompt_tokens,
            computed_tokens=self.computed_tokens * keep + new.computed_tokens,
            output_tokens=self.output_tokens * keep + new.output_tokens,
            arrivals=self.arrivals * keep_in + new.arrivals,
            bytes=self.bytes * keep_in + new.bytes,
        )

    def mix(self) -> Mix:
        """Return the mean request. Before the first one finishes, bytes estimate the prompt's length."""
        prior = Mix()
        if self.finished < 1.0:
            if self.arrivals < 1.0:
                return prior
            return replace(prior, prompt_tokens=max(1.0, self.bytes / self.arrivals / BYTES_PER_TOKEN))
        prompt = max(1.0, self.prompt_tokens / self.finished)
        share = min(1.0, self.computed_tokens / self.prompt_tokens) if self.prompt_tokens > 0 else 1.0
        return Mix(prompt, max(share, 0.01), max(1.0, self.output_tokens / self.finished))

    @property
    def tokens_per_byte(self) -> float:
        """Prompt tokens per byte of request body, as learned."""
        if self.finished < 1.0 or self.arrivals < 1.0 or self.bytes <= 0:
            return 1.0 / BYTES_PER_TOKEN
        # Bounded: an image of 1,000 tokens has a URL of 100 bytes, so higher ratios are not possible.
        return min((self.prompt_tokens / self.finished) / (self.bytes / self.arrivals), 1000.0)


def _share_kept(requests: float, elapsed_s: float) -> float:
    """Return the share of the mix that stays when `requests` more come within `elapsed_s` seconds."""
    return 1.0 - min(elapsed_s / _MIX_MEMORY_S, requests / _LEAST_MIX_MEMORY, 1.0)


@quick_dataclass(frozen=True, slots=True)
class Minute:
    """The requests and tokens served within a minute, and how many were late for lack of replicas."""

    began: float = 0.0
    ready: int = 0
    """The replicas that served in the minute: those at its begin, or one start before its end."""
    requests: float = 0.0
    late_requests: float = 0.0
    tokens: float = 0.0
    late_tokens: float = 0.0


@quick_dataclass(frozen=True, slots=True)
class EngineTotals:
    """The totals of an engine replica at its last report."""

    reported_at: float
    requests: float
    prompt_tokens: float
    computed_tokens: float
    """The prompt tokens that were not found in the prefix cache."""
    output_tokens: float


@quick_dataclass(frozen=True, slots=True)
class IngressTotals:
    """The totals of an ingress replica: arrivals, and the bytes of their bodies."""

    arrivals: float
    bytes: float


@quick_dataclass(frozen=True, slots=True)
class Waiting:
    """The queue at `at`, in engines and in the ingress."""

    at: float
    requests: float
    tokens: float


@quick_dataclass(frozen=True, slots=True)
class BackgroundWork:
    """A time in which the lane `background` has had work, with pauses shorter than the scale-down window."""

    since: float
    last: float
    """When work was last seen."""


@quick_dataclass(frozen=True, slots=True)
class Need:
    """The replicas that the load needed at `at`."""

    at: float
    replicas: int


@quick_dataclass(frozen=True, slots=True)
class PolicyState:
    """The memory about one model. The default is an empty memory."""

    since: float | None = None
    """When the memory began. After a reset, delays count from here."""
    demand: Demand = field(default_factory=Demand)
    service: StepTimeFit = field(default_factory=StepTimeFit)
    started_with: StepTime | None = None
    """The prior of `service` from the knobs; None for the general prior."""
    sums: MixSums = field(default_factory=MixSums)
    learned_headroom: float = 0.0
    """Added to the knob `headroom`; learned from minutes that missed their targets."""
    minute: Minute = field(default_factory=Minute)
    late_tokens: float = 0.0
    """Inter-token latencies above their target, a fading sum."""
    late_tokens_expected: float = 0.0
    """The same sum as expected by the model."""
    ready_mean: float = 0.0
    """The mean of ready replicas over the half minute that reported latencies cover."""
    engine_totals: Mapping[str, EngineTotals] = field(default_factory=dict)
    """By replica."""
    ingress_totals: Mapping[str, IngressTotals] = field(default_factory=dict)
    """By replica."""
    kv_cache_tokens: float = 0.0
    """The size of the KV cache of one replica in tokens, as last reported."""
    queue: tuple[Waiting, ...] = ()
    """The queue over the last `upscale_delay_s`."""
    recent_needs: tuple[Need, ...] = ()
    """Falling maxima: each entry is the largest need of the load since its time."""
    idle_since: float | None = None
    woken_at: float | None = None
    """Since when replicas are starting while none is ready; None otherwise."""
    background: BackgroundWork | None = None
    last_at: float | None = None
    mix: VariantMixState = field(default_factory=VariantMixState)
    """For a model with variants."""

    def elapsed_s(self, now: float) -> float:
        """Return the seconds since the last decision, at most ten, because longer gaps were not observed."""
        return 0.0 if self.last_at is None else min(max(now - self.last_at, 0.0), 10.0)

    @property
    def interference(self) -> float:
        """Measured late tokens divided by expected late tokens, within bounds."""
        ratio = (self.late_tokens + _PRIOR_LATE) / (self.late_tokens_expected + _PRIOR_LATE)
        return min(ratio, _MOST_INTERFERENCE)


def restore(document: Mapping[str, Any]) -> PolicyState:
    """Return the state of an `asdict(PolicyState())`, through JSON or not.

    Raises:
        ValueError: for a document that lacks a part. The caller then starts with an empty memory.
    """
    document = {"mix": asdict(VariantMixState()), **document}  # absent from those of 0.1.0
    _check_fields(document, asdict(PolicyState()))
    state: PolicyState = _STATES.validate_python(document)
    size = len(StepTimeFit().moment)
    if len(state.service.gram) != size * size or len(state.service.moment) != size:
        raise ValueError("a fit with another number of coefficients")
    if min(state.service.gram[:: size + 1]) <= 0:
        raise ValueError("a fit without its prior")
    if state.demand.start is not None and not state.demand.buckets:
        raise ValueError("demand without buckets")
    return state


_STATES = TypeAdapter(PolicyState)


def _check_fields(found: Any, fresh: Mapping[str, Any]) -> None:
    """Raise ValueError if a record in `found` lacks a field of `fresh`. Mappings of `fresh` are empty."""
    if not isinstance(found, Mapping) or not found.keys() >= fresh.keys():
        raise ValueError(f"fewer fields than {', '.join(fresh)}")
    for name, part in fresh.items():
        if isinstance(part, Mapping) and part:
            _check_fields(found[name], part)


KEPT_IDENTITIES = 4
"""The present identity and the three before: enough for a model, its successor, and a trial of each. A state
without traffic takes about 1 KB."""
FORGOTTEN_AFTER_S = 86_400.0
"""The memory of a removed model is kept for a day, for a rename that is reverted."""
KEPT_REMOVED = 16
"""The number of removed models whose memory is kept, the latest first. Each takes about 10 KB."""

_TRAFFIC = ("demand", "ingress_totals", "last_at", "mix")
# Queues and delays in progress, most of them in units of former replicas. `since` is reset, so that no
# replica is removed before the new replicas have been observed for as long as a new policy observes.
_MOMENT = (
    "since", "minute", "ready_mean", "engine_totals", "queue", "recent_needs", "idle_since", "woken_at",
    "background",
)  # fmt: skip
_FRESH = PolicyState()
# Tokenizers differ by about 20 % in the tokens of a text. The standard deviation of prompt lengths is about
# their mean, so the mean of 25 requests is also exact to 20 %. A former mix counts as 25 requests.
_FORMER_MIX = 25.0


@quick_dataclass(frozen=True, slots=True)
class Memory:
    """A policy's state, the identity of its replicas, and what was learned about earlier replicas."""

    state: PolicyState = field(default_factory=PolicyState)
    identity: str = ""
    """See `serve_app.settings.identity`; empty before the first decision."""
    former: tuple[tuple[str, PolicyState], ...] = ()
    """(identity, learned state) of earlier replicas, newest first."""

    def of(self, identity: str) -> tuple[Self, str]:
        """Return the memory for replicas of `identity`, and a message to the operator if it has changed."""
        if identity == self.identity:
            return self, ""
        if not self.identity:
            return replace(self, identity=identity), ""
        learned = {self.identity: replica_part(self.state), **dict(self.former)}
        replica = learned.pop(identity, None)
        kept = tuple(learned.items())[: KEPT_IDENTITIES - 1]
        known = type(self)(with_replica_part(self.state, replica), identity, kept)
        if replica is None:
            return known, f"The model is now {identity!r}. Nothing learned of {self.identity!r} is used."
        return known, f"The model is {identity!r} again. The figures learned of it are used again."


def drop_forgotten(memories: Mapping[str, Memory], served: Collection[str], now: float) -> dict[str, Memory]:
    """Return `memories` without deployments that have not been `served` for a day.

    At most `KEPT_REMOVED` deployments that are not served stay, the latest. `now` is Unix time in seconds.
    """

    def unserved_s(name: str) -> float:
        last_at = memories[name].state.last_at
        return inf if last_at is None else now - last_at

    removed = sorted(memories.keys() - set(served), key=unserved_s)
    kept = {name for name in removed[:KEPT_REMOVED] if unserved_s(name) < FORGOTTEN_AFTER_S}
    return {name: memory for name, memory in memories.items() if name in served or name in kept}


def replica_part(state: PolicyState) -> PolicyState:
    """Return the part of `state` about the replica, including the request mix in its tokenizer's tokens."""
    return replace(state, **{name: getattr(_FRESH, name) for name in (*_TRAFFIC, *_MOMENT)})


def with_replica_part(state: PolicyState, replica: PolicyState | None) -> PolicyState:
    """Return the traffic part of `state` with the replica part of `replica`; None stands for a fresh state.

    If `replica` has seen no request, the mix of `state` counts as 25 requests.
    """
    found = replica or _FRESH
    sums = found.sums if found.sums.finished else _fade_mix(state.sums)
    traffic = {name: getattr(state, name) for name in _TRAFFIC}
    arrived = {"arrivals": state.sums.arrivals, "bytes": state.sums.bytes}
    return replace(replica_part(found), **traffic, sums=replace(sums, **arrived))


def _fade_mix(sums: MixSums) -> MixSums:
    """Return the same mean request, weighted as 25 requests at most."""
    share = min(1.0, _FORMER_MIX / sums.finished) if sums.finished else 1.0
    return MixSums(**{field.name: getattr(sums, field.name) * share for field in fields(sums)})
