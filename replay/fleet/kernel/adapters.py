"""The LoRA adapters of one engine: a request for a missing one loads it, before the engine's next step.

As `engine.adapters` does, a replica unloads the adapter with the fewest uses that no request uses. While
requests use all of them, further ones are loaded.
"""

from replay.fleet.kernel.compiler import inner
from replay.fleet.layout import NONE, Memory


@inner
def load_tokens(m: Memory, r: int, q: int) -> int:
    """The prompt tokens that a replica prefills in the time of a load; 0 if it has the request's adapter."""
    a = m.requests[q].adapter
    if a == 0 or m.adapters[r, a].loaded:
        return 0
    totals = m.totals[0]
    rules = m.rules[0]
    speed = rules.tokens_per_s
    if rules.prefill_budget_s > 0.0 and totals.pace_s > 0.0:  # the ingress learns it from groups
        speed = totals.pace_tokens / totals.pace_s
    return int(speed * rules.adapter_load_s)


@inner
def use_adapter(m: Memory, r: int, q: int) -> None:
    """Count a request's use of its adapter on a replica, which loads a missing adapter."""
    a = m.requests[q].adapter
    if a == 0:
        return
    rules = m.rules[0]
    rep = m.replicas[r]
    rep.adapter_uses += 1
    if rep.adapter_uses % rules.adapter_memory == 0:
        for b in range(m.adapters.shape[1]):
            m.adapters[r, b].uses *= 0.5
    m.adapters[r, a].uses += 1.0
    m.adapters[r, a].calls += 1
    m.totals[0].adapter_requests += 1
    if m.adapters[r, a].loaded:
        m.totals[0].adapter_hits += 1
        return
    m.adapters[r, a].loaded = 1
    rep.adapters += 1
    rep.load_s += rules.adapter_load_s
    while rep.adapters > rules.max_cached_adapters:
        least = NONE
        for b in range(m.adapters.shape[1]):
            one = m.adapters[r, b]
            if one.loaded and not one.calls and (least == NONE or one.uses < m.adapters[r, least].uses):
                least = b
        if least == NONE:
            return
        m.adapters[r, least].loaded = 0
        rep.adapters -= 1


@inner
def stop_using(m: Memory, r: int, q: int) -> None:
    """Note that a request has left a replica."""
    a = m.requests[q].adapter
    if a:
        m.adapters[r, a].calls -= 1
