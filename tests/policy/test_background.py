"""The lane `background` in decisions: what its work may ask for, and that it changes nothing else."""

from dataclasses import replace
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.policy.decide import Decision, Term, next_decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs, Window
from serve_app.wire.signals import EngineSignals, Reading
from tests.policy.build import NOW, PolicyLoop, engine, ingress, snapshot
from tests.policy.test_decide_properties import any_knobs, histories

KNOBS = Knobs(
    min_replicas=0,
    max_replicas=10,
    headroom=0,
    forecast=False,
    downscale_delay_s=30,
    downscale_to_zero_delay_s=120,
    background_keep_s=600,
)
NIGHT = Window(start="22:00", end="23:00")
"""`NOW` is 22:13:20 UTC."""
NONE = " Background requests add no replica."
DAY = Window(start="08:00", end="18:00")
FLOOD = {
    "background_running_requests": 64.0,
    "background_running_tokens": 64_000.0,
    "background_waiting_requests": 8.0,
    "background_waiting_tokens": 8_000.0,
    "background_ongoing_requests": 72.0,
    "ongoing_requests": 72.0,
}
HELD = {"background_held_requests": 500.0, "background_held_bytes": 2e6}


def knobs(**changed: Any) -> Knobs:
    return KNOBS.model_copy(update=changed)


def background(decision: Decision) -> Term:
    return next(term for term in decision.terms if term.name == "background")


def flooded(replicas: int, **rest: Any) -> Snapshot:
    """A fleet with background work only."""
    return snapshot(*[engine(**FLOOD)] * replicas, at={"i0": ingress(**HELD)}, **rest)


AT_ZERO = snapshot(at={"i0": ingress(**HELD)})


# Nothing else changes.


def _with(background_: dict[str, float], reading: Reading[Any]) -> Reading[Any]:
    signals = reading.signals
    if isinstance(signals, EngineSignals):
        more = background_["background_running_requests"] + background_["background_waiting_requests"]
        open_ = {"background_ongoing_requests": more, "ongoing_requests": signals.ongoing_requests + more}
        own = {name: value for name, value in background_.items() if "held" not in name}
        return replace(reading, signals=replace(signals, **own, **open_))
    own = {name: value for name, value in background_.items() if "held" in name}
    return replace(reading, signals=replace(signals, **own))


def _without(reading: Reading[Any]) -> Reading[Any]:
    """Return a report without background work, and without tokens that it could make late.

    Whole numbers of requests can be added without a rounding error.
    """
    signals = reading.signals
    none = {name: 0.0 for name in FLOOD | HELD if "background" in name and hasattr(signals, name)}
    if isinstance(signals, EngineSignals):
        ongoing = signals.ongoing_requests
        none |= {"itl_count": 0.0, "ongoing_requests": float(int(ongoing)) if isfinite(ongoing) else 0.0}
    return replace(reading, signals=replace(signals, **none))


loads = st.fixed_dictionaries(
    {name: st.integers(0, 1000).map(float) for name in FLOOD | HELD if "ongoing" not in name}
)


@given(any_knobs(), histories, st.lists(loads, min_size=6, max_size=6))
def test_background_work_only_keeps_the_last_replica(
    given_: Knobs, history: list[tuple[float, Snapshot]], each: list[dict[str, float]]
) -> None:
    plain, loaded, now = PolicyState(), PolicyState(), NOW
    for (gap, seen), load in zip(history, each, strict=False):
        now += gap
        bare = replace(
            seen,
            engines={name: _without(reading) for name, reading in seen.engines.items()},
            ingress={name: _without(reading) for name, reading in seen.ingress.items()},
        )
        full = replace(
            bare,
            engines={name: _with(load, reading) for name, reading in bare.engines.items()},
            ingress={name: _with(load, reading) for name, reading in bare.ingress.items()},
        )
        without, plain = next_decision(bare, given_, plain, now)
        with_, loaded = next_decision(full, given_, loaded, now)
        kept = (without.target, with_.target) == (0, 1) and full.target > 0
        assert with_.target == without.target or kept


def test_flood_leaves_an_idle_model_idle() -> None:
    loop = PolicyLoop(knobs(background_keep_s=0))

    assert loop.decide_for(119, flooded(1)).target == 1
    assert loop.decide_for(3, flooded(1)).target == 0


def test_flood_never_blocks_a_scale_down() -> None:
    loop = PolicyLoop(KNOBS)

    decision = loop.decide_for(150, flooded(3))

    assert decision.target == 1
    assert not decision.clamps


def test_late_tokens_beside_background_work_add_no_headroom() -> None:
    late = {"itl_count": 1000.0, "ttft_count": 100.0}
    late |= {f"itl_p{p}_s": 1.0 for p in (50, 90, 95, 96, 97, 98, 99)}

    def headroom(**more: float) -> float:
        loop = PolicyLoop(KNOBS)
        for second in range(200):
            arrived = ingress(arrivals_total=2.0 * second, arrived_bytes_total=4000.0 * second)
            loop.decide(snapshot(engine(**late, **more), at={"i0": arrived}))
        return loop.state.learned_headroom

    assert headroom() > 0
    assert headroom(**FLOOD) == 0


# Its own replicas.


def test_background_uses_the_idle_time_of_a_fleet() -> None:
    busy = engine(waiting_requests=5, waiting_tokens=500, **FLOOD)
    loop = PolicyLoop(knobs(queue_target_per_replica=8, upscale_delay_s=0))

    decision = loop.decide(snapshot(*[busy] * 5, at={"i0": ingress()}))

    assert background(decision) == Term(
        "background", 0, f"4 of 5 replicas are needed. The background lane uses the idle time of 1.{NONE}"
    )


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (
            snapshot(engine(running_requests=1, **FLOOD), at={"i0": ingress()}),
            f"The background lane uses the free places in the batches of all replicas.{NONE}",
        ),
        (
            snapshot(engine(running_requests=1), at={"i0": ingress(**HELD)}),
            f"500 background requests are waiting for a free place in a batch.{NONE}",
        ),
    ],
)
def test_reason_says_what_background_work_uses(seen: Snapshot, why: str) -> None:
    assert background(PolicyLoop(KNOBS).decide(seen)).why == why


def test_background_keeps_the_last_replica_for_a_time() -> None:
    loop = PolicyLoop(KNOBS)

    decision = loop.decide_for(300, flooded(1))
    assert (decision.target, decision.binding) == (1, "background")
    assert decision.reason == (
        "background: For 299 s the model has had no work except background requests. "
        "Background requests keep the last replica for 600 s after the last other request."
    )
    assert decision.counterfactual.endswith(
        "The target falls to 0 replicas in 301 s if only background requests come."
    )
    decision = loop.decide_for(302, flooded(1))
    assert decision.target == 0
    assert background(decision).why.endswith("for 600 s after the last other request, which are over.")


def test_short_pause_of_background_work_keeps_the_replica() -> None:
    loop = PolicyLoop(KNOBS)
    loop.decide_for(300, flooded(1))

    assert loop.decide_for(29, snapshot(engine())).target == 1
    assert loop.decide_for(2, snapshot(engine())).target == 0


def test_background_wakes_no_model_without_the_knob() -> None:
    loop = PolicyLoop(knobs(background_backlog_s=60))

    decision = loop.decide_for(30, AT_ZERO)

    assert (decision.target, decision.binding) == (0, "background")
    assert "500 background requests are waiting until another request starts a replica." in decision.reason
    assert decision.counterfactual == (
        "The target rises at the first request of another lane than background."
    )
    assert loop.decide(snapshot()).binding == "idle"


@pytest.mark.parametrize(("hours", "target"), [((), 1), ((NIGHT,), 1), ((DAY,), 0), ((DAY, NIGHT), 1)])
def test_background_wakes_a_model_within_its_hours(hours: tuple[Window, ...], target: int) -> None:
    decision = PolicyLoop(knobs(background_wakes=True, background_hours=hours)).decide(AT_ZERO)

    assert decision.target == target
    assert ("waiting for background_hours" in decision.reason) == (not target)


def test_woken_replica_stays_until_the_background_work_is_done() -> None:
    loop = PolicyLoop(knobs(background_wakes=True, background_keep_s=0))
    loop.decide(AT_ZERO)

    decision = loop.decide_for(1000, flooded(1))
    assert decision.target == 1
    assert decision.counterfactual.endswith(
        "The target falls to 0 replicas when no background request waits or runs."
    )
    assert loop.decide_for(31, snapshot(engine())).target == 0


def backlog(tokens: float, target: int) -> Snapshot:
    """Prompts without an answer in the ingress, of 4 bytes a token, and an idle fleet."""
    held = ingress(background_held_requests=1, background_held_bytes=4 * tokens)
    return snapshot(*[engine()] * target, at={"i0": held})


def test_backlog_gets_replicas_to_end_in_time() -> None:
    """2,000,000 prompt tokens of 50 us are 100 s of work."""
    loop = PolicyLoop(knobs(background_backlog_s=30, background_hours=(NIGHT,)))

    decision = loop.decide(backlog(2e6, 1))

    assert (decision.target, decision.binding) == (4, "background")
    assert "s of work, which should be done in 30 s. So 4 replicas are needed." in decision.reason
    assert 100 < decision.signals["background_work_s"] < 101


@pytest.mark.parametrize(
    "changed", [{"background_backlog_s": None}, {"background_hours": (DAY,)}, {"max_replicas": 1}]
)
def test_backlog_adds_no_replica_beyond_its_knobs(changed: dict[str, Any]) -> None:
    loop = PolicyLoop(knobs(**{"background_backlog_s": 30.0, **changed}))

    assert loop.decide(backlog(2e6, 1)).target == 1


def test_replicas_of_a_backlog_stay_until_it_is_done() -> None:
    """The time that is left shrinks as the work does. A backlog that is late is planned for a tenth."""
    loop, targets = PolicyLoop(knobs(background_backlog_s=100, downscale_delay_s=0)), []
    tokens = 6e6
    while tokens > 0:
        targets.append(loop.decide(backlog(tokens, targets[-1] if targets else 1)).target)
        tokens -= targets[-1] / 50e-6

    assert targets[0] == 4
    assert set(targets[:60]) == {4}
    assert len(targets) <= 100


def test_backlog_is_done_beside_the_load_of_other_lanes() -> None:
    """0.71 of a replica for the backlog, and 0.55 for the other lanes."""
    loop = PolicyLoop(knobs(background_backlog_s=200))
    for second in range(60):
        arrived = ingress(
            arrivals_total=10.0 * second,
            arrived_bytes_total=2e4 * second,
            background_held_requests=1,
            background_held_bytes=8e6,
        )
        decision = loop.decide(snapshot(*[engine()] * 5, at={"i0": arrived}))

    assert background(decision).why.endswith(
        "Other lanes use the time of 0.55 replicas. So 2 replicas are needed."
    )


def test_model_without_background_work_has_no_such_term() -> None:
    assert [term.name for term in PolicyLoop(KNOBS).decide(snapshot()).terms][-1] == "awake"
