"""What the policy remembers between decisions. Plain data: it can be lost or restored at any moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from serve_app.policy.capacity_model import Mix, ServiceModel
from serve_app.policy.demand import Demand
from serve_app.policy.peaks import Peaks

# Requests after which older ones have faded from the mix: a fleet of ten replicas has them in three
# minutes. With 500 the mean prompt, and with it the capacity, moves by a tenth from one minute to the next.
_MIX_MEMORY = 5000.0
# English text runs at about four bytes a token; a JSON body adds little to a long prompt.
_BYTES_PER_TOKEN = 4.0

_PRIOR_LATE = 1000.0
"""Late tokens by which the model is trusted. A busy replica decodes a thousand tokens a second, and some
tens of them come late: half a minute's worth."""
_MOST_INTERFERENCE = 8.0
"""Traffic on record comes to 6. Beyond it tokens are late whatever the replicas do, each of which makes the
model expect fewer of them: unbounded, the ratio would send such a fleet to its maximum."""


@dataclass(frozen=True, slots=True)
class MixSums:
    """Fading sums over finished requests and arrivals, from which the mix is the means."""

    finished: float = 0.0
    prompt_tokens: float = 0.0
    computed_tokens: float = 0.0
    output_tokens: float = 0.0
    arrivals: float = 0.0
    bytes: float = 0.0

    def add(
        self,
        finished: float,
        prompt_tokens: float,
        computed_tokens: float,
        output_tokens: float,
        arrivals: float,
        body_bytes: float,
    ) -> MixSums:
        """The sums with what came since."""
        keep = 1.0 - min(finished / _MIX_MEMORY, 1.0)
        keep_in = 1.0 - min(arrivals / _MIX_MEMORY, 1.0)
        return MixSums(
            self.finished * keep + finished,
            self.prompt_tokens * keep + prompt_tokens,
            self.computed_tokens * keep + computed_tokens,
            self.output_tokens * keep + output_tokens,
            self.arrivals * keep_in + arrivals,
            self.bytes * keep_in + body_bytes,
        )

    def mix(self) -> Mix:
        """The mean request; before the first has finished, prompts are guessed from bytes."""
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
        """Prompt tokens for a byte of request body, as learned."""
        if self.finished < 1.0 or self.arrivals < 1.0 or self.bytes <= 0:
            return 1.0 / _BYTES_PER_TOKEN
        # An image may be a thousand tokens and its address a hundred bytes; more is not a request.
        return min((self.prompt_tokens / self.finished) / (self.bytes / self.arrivals), 1000.0)


@dataclass(frozen=True, slots=True)
class PolicyState:
    """The memory of one model's policy. The default is that of a policy that has seen nothing."""

    since: float | None = None
    """When it began to remember; delays count from here after a reset."""
    demand: Demand = field(default_factory=Demand)
    service: ServiceModel = field(default_factory=ServiceModel)
    started_with: tuple[float, ...] | None = None
    """The coefficients that `service` began with, if knobs gave them; None for the general prior."""
    sums: MixSums = field(default_factory=MixSums)
    correction: float = 1.0
    """What latencies as measured say of the capacity the model computes: a factor on it."""
    correction_limit: float = 1.0
    """The most that factor may be until `limited_until`."""
    limited_until: float = 0.0
    late_tokens: float = 0.0
    """Inter-token latencies above their target, fading; and how many the model expected."""
    late_tokens_expected: float = 0.0
    ready_mean: float = 0.0
    """Ready replicas, averaged over the half minute that latencies are reported of."""
    lowered: tuple[float, float, float] | None = None
    """(time, correction, requests a second) at the last scale-down."""
    engine_totals: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By replica: time of the report; requests, prompt, prefilled and output tokens of what finished."""
    ingress_totals: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By replica: arrivals and the bytes of their bodies."""
    kv_cache_tokens: float = 0.0
    """Of one replica, as last reported."""
    queue: tuple[tuple[float, float, float], ...] = ()
    """(time, requests, tokens) waiting, over the last `upscale_delay_s`."""
    peaks: tuple[tuple[float, int], ...] = ()
    """(time, replicas) the load has asked for: falling, each entry the most since its time."""
    idle_since: float | None = None
    moved_at: float | None = None
    """When the number of ready or wanted replicas last changed."""
    fleet: tuple[int, int] = (0, 0)
    """(ready, target) at the last decision."""
    woken_at: float | None = None
    """Since when replicas have been asked for and none is ready; None at zero and with one ready."""
    last_at: float | None = None

    @property
    def interference(self) -> float:
        """How many times as many tokens come late as the model expects, within reason."""
        ratio = (self.late_tokens + _PRIOR_LATE) / (self.late_tokens_expected + _PRIOR_LATE)
        return min(ratio, _MOST_INTERFERENCE)

    def document(self) -> dict[str, Any]:
        """As plain data, for `restore`."""
        return asdict(self)


def restore(document: Mapping[str, Any]) -> PolicyState:
    """A state from `PolicyState.document()`, through JSON or not.

    Raises:
        TypeError, ValueError, KeyError: for a document of another version; start afresh then.
    """
    plain = dict(document)
    demand, service = plain.pop("demand"), _service(plain.pop("service"))
    started_with = plain.pop("started_with", None)  # older documents know only the general prior
    sums = plain.pop("sums")
    lowered = plain.pop("lowered")
    for name in ("since", "idle_since", "moved_at", "woken_at", "last_at"):
        plain[name] = _time(plain[name])
    for name in (
        "correction",
        "correction_limit",
        "limited_until",
        "late_tokens",
        "late_tokens_expected",
        "ready_mean",
        "kv_cache_tokens",
    ):
        plain[name] = float(plain[name])
    return PolicyState(
        demand=Demand(
            tuple((float(a), float(b)) for a, b in demand["buckets"]),
            _time(demand["start"] if demand["buckets"] else None),
            float(demand["until"]),
            _peaks(demand["peaks"]),
        ),
        service=service,
        started_with=tuple(map(float, started_with)) if started_with is not None else None,
        sums=MixSums(**{name: float(value) for name, value in sums.items()}),
        engine_totals=_totals(plain.pop("engine_totals"), 5),
        ingress_totals=_totals(plain.pop("ingress_totals"), 2),
        queue=tuple((float(t), float(r), float(k)) for t, r, k in plain.pop("queue")),
        peaks=tuple((float(t), int(n)) for t, n in plain.pop("peaks")),
        lowered=(float(lowered[0]), float(lowered[1]), float(lowered[2])) if lowered is not None else None,
        fleet=(int(plain["fleet"][0]), int(plain.pop("fleet")[1])),
        **plain,
    )


def _service(document: Mapping[str, Any]) -> ServiceModel:
    model = ServiceModel(
        tuple(map(float, document["gram"])), tuple(map(float, document["moment"])), float(document["steps"])
    )
    fresh = ServiceModel()
    if (len(model.gram), len(model.moment)) != (len(fresh.gram), len(fresh.moment)):
        raise ValueError("a fit of another number of coefficients")
    if min(model.gram[:: len(model.moment) + 1]) <= 0:
        raise ValueError("a fit without its prior")
    return model


def _peaks(document: Mapping[str, Any]) -> Peaks:
    def weights(name: str) -> dict[int, float]:
        return {int(place): float(weight) for place, weight in document[name].items()}

    return Peaks(weights("levels"), weights("rises"), float(document["requests"]), float(document["squares"]))


def _totals(document: Mapping[str, Any], length: int) -> dict[str, tuple[float, ...]]:
    totals = {str(source): tuple(map(float, values)) for source, values in document.items()}
    if any(len(values) != length for values in totals.values()):
        raise ValueError(f"totals that are not {length} numbers")
    return totals


def _time(value: Any) -> float | None:
    return None if value is None else float(value)
