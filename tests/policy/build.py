"""Snapshots for tests, with only what a test is about spelled out."""

from collections.abc import Mapping
from typing import Any

from serve_app.policy.decide import Decision, next_decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs
from serve_app.wire.signals import EngineSignals, IngressSignals, Reading

NOW = 1_700_000_000.0
"""A Tuesday, 22:13:20 UTC."""


def engine(age_s: float = 0.2, **signals: float) -> Reading[EngineSignals]:
    """The report of an engine replica with room for 200,000 tokens."""
    return Reading(EngineSignals(**{"kv_cache_tokens": 200_000.0, **signals}), age_s)


def ingress(age_s: float = 0.2, **signals: float) -> Reading[IngressSignals]:
    """The report of an ingress replica."""
    return Reading(IngressSignals(**signals), age_s)


def snapshot(
    *engines: Reading[EngineSignals],
    at: Mapping[str, Reading[IngressSignals]] | None = None,
    target: int | None = None,
    ready: int | None = None,
    **rest: Any,
) -> Snapshot:
    """A fleet of `engines`, all of them ready, behind one ingress replica where nothing happens."""
    ready = len(engines) if ready is None else ready
    return Snapshot(
        target=ready if target is None else target,
        ready=ready,
        engines={f"e{number}": reading for number, reading in enumerate(engines)},
        ingress={"i0": ingress()} if at is None else at,
        **rest,
    )


class PolicyLoop:
    """Hands the policy one snapshot after the other, with its memory, on a clock the test moves."""

    def __init__(self, knobs: Knobs, state: PolicyState | None = None) -> None:
        self.knobs = knobs
        self.state = state or PolicyState()
        self.now = NOW

    def decide(self, seen: Snapshot, after_s: float = 1.0) -> Decision:
        """The decision on `seen`, `after_s` after the one before."""
        self.now += after_s
        decision, self.state = next_decision(seen, self.knobs, self.state, self.now)
        return decision

    def decide_for(self, seconds: float, seen: Snapshot, every_s: float = 1.0) -> Decision:
        """The last of the decisions on the same `seen` for so long."""
        for _ in range(round(seconds / every_s)):
            decision = self.decide(seen, every_s)
        return decision
