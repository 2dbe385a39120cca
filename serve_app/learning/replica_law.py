"""What a memory knows of the replica, apart from what it knows of the traffic.

Another model behind a name gets the same requests, so their demand goes on. How fast a step is, how much
KV cache there is and how far the model of both can be trusted is true of the former replicas only.
"""

from dataclasses import fields, replace

from serve_app.learning.state import MixSums, PolicyState

_TRAFFIC = ("demand", "ingress_totals", "last_at")
# Queues and delays in progress, most of them counted in replicas of the former speed. Without `since`,
# nothing is removed until the new replicas have been observed for as long as a new policy observes.
_MOMENT = (
    "since", "minute", "ready_mean", "engine_totals", "queue", "peaks", "idle_since", "woken_at",
)  # fmt: skip
_FRESH = PolicyState()
# Tokenizers count some 20 % more or fewer tokens in a text. Prompts scatter about as much as they are long,
# so 25 requests tell their mean to 20 %: a former mix is worth as many.
_FORMER_MIX = 25.0


def law_of(state: PolicyState) -> PolicyState:
    """Return what `state` knows of the replica, with the mix of requests as its tokenizer counts them."""
    return replace(state, **{name: getattr(_FRESH, name) for name in (*_TRAFFIC, *_MOMENT)})


def with_law(state: PolicyState, law: PolicyState | None) -> PolicyState:
    """Return the traffic that `state` knows with what `law` knows of the replica; None knows nothing.

    The mix of a law that has seen no request is that of `state`, until 25 requests outweigh it.
    """
    found = law or _FRESH
    sums = found.sums if found.sums.finished else _faded(state.sums)
    traffic = {name: getattr(state, name) for name in _TRAFFIC}
    arrived = {"arrivals": state.sums.arrivals, "bytes": state.sums.bytes}
    return replace(law_of(found), **traffic, sums=replace(sums, **arrived))


def _faded(sums: MixSums) -> MixSums:
    """Return the same mean request, known as well as from 25 requests at the most."""
    share = min(1.0, _FORMER_MIX / sums.finished) if sums.finished else 1.0
    return MixSums(**{field.name: getattr(sums, field.name) * share for field in fields(sums)})
