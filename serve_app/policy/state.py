"""What the policy remembers between decisions: plain data that can be lost or restored at any moment."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from pydantic import TypeAdapter

from serve_app.policy.capacity_model import Mix
from serve_app.policy.demand import Demand
from serve_app.policy.step_time_fit import StepTimeFit

# Requests after which older ones have faded from the mix: ten replicas serve them in three minutes. With
# 500 the mean prompt, and with it the capacity, moves by a tenth from one minute to the next.
_MIX_MEMORY = 5000.0
# English text has about four bytes per token; a JSON body adds little to a long prompt.
_BYTES_PER_TOKEN = 4.0
# Late tokens that the model is trusted with. A busy replica decodes a thousand tokens a second, of which some
# tens are late: this is half a minute of them.
_PRIOR_LATE = 1000.0
# Recorded traffic reaches 6. Beyond that tokens are late whatever the fleet does, and each replica makes the
# model expect fewer of them: without a bound the ratio would send such a fleet to its maximum.
_MOST_INTERFERENCE = 8.0


@dataclass(frozen=True, slots=True)
class MixSums:
    """Fading sums over finished requests and arrivals; the mix is their means."""

    finished: float = 0.0
    prompt_tokens: float = 0.0
    computed_tokens: float = 0.0
    output_tokens: float = 0.0
    arrivals: float = 0.0
    bytes: float = 0.0

    def add(self, new: Self) -> Self:
        """Return the sums with what has finished and arrived since."""
        keep = 1.0 - min(new.finished / _MIX_MEMORY, 1.0)
        keep_in = 1.0 - min(new.arrivals / _MIX_MEMORY, 1.0)
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
        """Return the mean request; before the first has finished, its prompt is estimated from bytes."""
        prior = Mix()
        if self.finished < 1.0:
            if self.arrivals < 1.0:
                return prior
            return replace(prior, prompt_tokens=max(1.0, self.bytes / self.arrivals / _BYTES_PER_TOKEN))
        prompt = max(1.0, self.prompt_tokens / self.finished)
        share = min(1.0, self.computed_tokens / self.prompt_tokens) if self.prompt_tokens > 0 else 1.0
        return Mix(prompt, max(share, 0.01), max(1.0, self.output_tokens / self.finished))

    @property
    def tokens_per_byte(self) -> float:
        """Prompt tokens per byte of request body, as learned."""
        if self.finished < 1.0 or self.arrivals < 1.0 or self.bytes <= 0:
            return 1.0 / _BYTES_PER_TOKEN
        # An image may be a thousand tokens and its URL a hundred bytes; a higher ratio is no request.
        return min((self.prompt_tokens / self.finished) / (self.bytes / self.arrivals), 1000.0)


@dataclass(frozen=True, slots=True)
class Minute:
    """What a settled fleet has served within a minute, and how much of it too late for lack of replicas."""

    began: float = 0.0
    requests: float = 0.0
    late_requests: float = 0.0
    tokens: float = 0.0
    late_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class PolicyState:
    """The memory about one model. The default is that of a policy that has seen nothing."""

    since: float | None = None
    """When the policy began to remember; delays count from here after a reset."""
    demand: Demand = field(default_factory=Demand)
    service: StepTimeFit = field(default_factory=StepTimeFit)
    started_with: tuple[float, ...] | None = None
    """The coefficients of the prior of `service`, if knobs gave them; None for the general prior."""
    sums: MixSums = field(default_factory=MixSums)
    correction: float = 1.0
    """The factor on the computed capacity that follows from measured latencies."""
    correction_limit: float = 1.0
    """The most that `correction` may be until `limited_until`."""
    limited_until: float = 0.0
    learned_headroom: float = 0.0
    """What minutes that missed their targets have added to the knob `headroom`."""
    minute: Minute = field(default_factory=Minute)
    late_tokens: float = 0.0
    """Inter-token latencies above their target, a fading sum."""
    late_tokens_expected: float = 0.0
    """The sum that the model expected."""
    ready_mean: float = 0.0
    """The mean of ready replicas over the half minute that reported latencies cover."""
    lowered: tuple[float, float, float] | None = None
    """(time, correction, requests a second) at the last scale-down."""
    engine_totals: Mapping[str, tuple[float, float, float, float, float]] = field(default_factory=dict)
    """By replica: time of the report; finished requests; their prompt, prefilled and output tokens."""
    ingress_totals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By replica: arrivals and the bytes of their bodies."""
    kv_cache_tokens: float = 0.0
    """Tokens that the KV cache of one replica holds, as last reported."""
    queue: tuple[tuple[float, float, float], ...] = ()
    """(time, requests, tokens) waiting, over the last `upscale_delay_s`."""
    peaks: tuple[tuple[float, int], ...] = ()
    """(time, replicas) that the load has needed: falling, each entry the most since its time."""
    idle_since: float | None = None
    moved_at: float | None = None
    """When the number of ready or wanted replicas last changed."""
    fleet: tuple[int, int] = (0, 0)
    """(ready, target) at the last decision."""
    woken_at: float | None = None
    """Since when replicas are starting and none is ready; None at zero and with one ready."""
    last_at: float | None = None

    @property
    def interference(self) -> float:
        """Late tokens measured over late tokens expected, within bounds."""
        ratio = (self.late_tokens + _PRIOR_LATE) / (self.late_tokens_expected + _PRIOR_LATE)
        return min(ratio, _MOST_INTERFERENCE)

    def document(self) -> dict[str, Any]:
        """Return the state as plain data, for `restore`."""
        return asdict(self)


def restore(document: Mapping[str, Any]) -> PolicyState:
    """Return the state of a `PolicyState.document()`, through JSON or not.

    Raises:
        ValueError: for a document of another version; start afresh then.
    """
    _check_fields(document, PolicyState().document())
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
    """Raise ValueError if a record in `found` has other fields than in `fresh`, where mappings are empty."""
    if not isinstance(found, Mapping) or found.keys() != fresh.keys():
        raise ValueError(f"other fields than {', '.join(fresh)}")
    for name, part in fresh.items():
        if isinstance(part, Mapping) and part:
            _check_fields(found[name], part)
