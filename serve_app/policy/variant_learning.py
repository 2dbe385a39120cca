"""Learn about one variant: the speed of its replicas, how its nodes come, and how they go. Pure."""

from collections.abc import Collection
from dataclasses import replace

from serve_app.policy.capacity_model import StepTime
from serve_app.policy.reports import Snapshot, step_sample
from serve_app.policy.step_time_fit import StepTimeFit
from serve_app.policy.variant_state import End, VariantState

_FIRST_TRY_S, _LAST_TRY_S = 60.0, 1800.0
"""The first and the longest time after which a dry variant is tried again."""
_KEPT_WAITS = 5
_KEPT_ENDS = 50
_MOST_WATCHED_S = 14 * 86_400.0
"""Older ends say little about the present state of a cloud."""


def observe_variant(
    state: VariantState,
    identity: str,
    snapshot: Snapshot,
    placed: int,
    left: Collection[str],
    notice_s: float,
    now: float,
) -> VariantState:
    """Return the memory with the reports and nodes of this moment.

    Args:
        state: The memory.
        identity: See `serve_app.settings.identity`. Speeds belong to it.
        snapshot: The replicas of this variant.
        placed: Those among them that have a node.
        left: Replicas whose nodes have been taken away, or will be.
        notice_s: How long the newest of them go on.
        now: Unix time in seconds.
    """
    if state.identity != identity:
        state = replace(state, identity=identity, fit=StepTimeFit(), kv_cache_tokens=0.0, reported_at={})
    state = _learn_nodes(_learn_speed(state, snapshot, now), snapshot, placed, now)
    return _learn_ends(state, snapshot.horizon_s, left, notice_s, now)


def _learn_speed(state: VariantState, snapshot: Snapshot, now: float) -> VariantState:
    samples, reported, cache = [], {}, state.kv_cache_tokens
    for replica, reading in snapshot.engines.items():
        at = round(now - reading.age_s, 2)
        reported[replica] = at
        if not reading.fresh or abs(at - state.reported_at.get(replica, 0.0)) <= 0.05:
            continue
        cache = reading.signals.kv_cache_tokens or cache
        if (sample := step_sample(reading.signals)) is not None:
            samples.append(sample)
    fit = state.fit.learn(samples)
    return replace(state, fit=fit, kv_cache_tokens=cache, reported_at=reported)


def _learn_nodes(state: VariantState, snapshot: Snapshot, placed: int, now: float) -> VariantState:
    if placed > state.placed and state.since is not None:
        waits = (*state.node_waits_s, state.pending_s)[-_KEPT_WAITS:]
        state = replace(state, node_waits_s=waits, try_at=None, try_wait_s=0.0)
    elif snapshot.pending and snapshot.pending_s > state.usual_wait_s:
        state = _run_dry(state, now)
    pending_s = snapshot.pending_s if snapshot.pending else 0.0
    since = now if state.since is None or state.since > now else max(state.since, now - _MOST_WATCHED_S)
    return replace(state, placed=placed, pending_s=pending_s, since=since)


def _learn_ends(
    state: VariantState, start_s: float, left: Collection[str], notice_s: float, now: float
) -> VariantState:
    new = [replica for replica in left if replica not in state.leaving]
    kept = tuple(end for end in state.ends if now - end.at < _MOST_WATCHED_S)
    if not new:
        return replace(state, ends=kept, leaving=tuple(left))
    uncovered_s = max(0.0, start_s - notice_s)
    end = End(now, len(new), uncovered_s)
    if kept and now - kept[-1].at < max(start_s, 1.0):  # replacements of the last end have not started yet
        last = kept[-1]
        end = End(last.at, last.replicas + len(new), max(last.uncovered_s, uncovered_s))
        kept = kept[:-1]
    state = replace(state, ends=(*kept, end)[-_KEPT_ENDS:], leaving=tuple(left))
    return _run_dry(state, now)


def _run_dry(state: VariantState, now: float) -> VariantState:
    """Return the memory of a variant that is dry from `now` on."""
    if state.is_dry(now):
        return state
    wait_s = min(max(2 * state.try_wait_s, _FIRST_TRY_S), _LAST_TRY_S)
    return replace(state, try_at=now + wait_s, try_wait_s=wait_s)


def scaled(step: StepTime, speed: float) -> StepTime:
    """Return the step time of a replica that is `speed` times as fast."""
    return StepTime(
        step.base_s / speed,
        step.per_sequence_s / speed,
        step.per_kv_token_s / speed,
        step.per_prefill_token_s / speed,
    )
