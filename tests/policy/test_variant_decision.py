"""The decision about a model with variants, from a need in replicas to targets by variant."""

from dataclasses import replace
from typing import Literal

import pytest

from serve_app.policy.decide import Decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.policy.variant_decision import VariantNow, decide_variants, divide
from serve_app.policy.variant_state import End, VariantState
from serve_app.settings.knobs import Knobs
from serve_app.wire.served_models import ServedVariant

SERVED = ServedVariant("on-demand", "Engine-a@on-demand", {}, "", 3.7, False, 0, 10, 1.0)


def targets(*needs: int) -> list[int]:
    """Return the replicas that are asked for, a second apart, where the model's policy asks for `needs`."""
    state, found = PolicyState(), [needs[0]]
    for second, need in enumerate(needs):
        decision = Decision(need, need, "load", "", "", load=float(need))
        now = VariantNow(SERVED, Snapshot(target=found[-1], ready=found[-1]), placed=found[-1])
        answer = decide_variants(
            [now],
            Knobs(),
            state,
            1000.0 + second,
            lambda _, state, decision=decision: (decision, state),
        )
        state = answer[1]
        found.append(answer[0].targets["on-demand"])
    return found[1:]


def test_a_mix_shrinks_with_the_target_that_has_waited() -> None:
    assert targets(4, 4, 2, 2) == [4, 4, 2, 2]


def test_a_mix_grows_with_the_target_at_once() -> None:
    assert targets(2, 4, 5) == [2, 4, 5]


def test_a_pool_with_one_node_too_few_keeps_its_replicas() -> None:
    """Four are wanted, three have nodes. Ray stops one that starts, and the one that waits gets its node."""
    spot = ServedVariant("spot", "Engine-a@spot", {}, "", 1.2, True, 0, 10, 1.0)
    state, asked = PolicyState(), {"spot": 0, "on-demand": 2}
    decision = Decision(2, 2, "load", "", "", load=2.0)
    # Two may end at once, as has been seen.
    ends = VariantState(node_waits_s=(5.0,), since=0.0, ends=(End(900.0, 2, 60.0),))
    state = replace(state, mix=replace(state.mix, variants={"spot": ends}, units=2, last_at=999.0))
    found = []
    for second, placed, waits_s in [
        (0, 0, 0.0),
        (2, 3, 2.0),
        (20, 3, 20.0),
        (22, 2, 22.0),
        (35, 2, 35.0),
        (36, 3, 0.0),
    ]:
        pending = asked["spot"] > placed and waits_s >= 5.0
        variants = [
            VariantNow(
                spot,
                Snapshot(target=asked["spot"], ready=0, pending=int(pending), pending_s=waits_s * pending),
                placed=placed,
            ),
            VariantNow(SERVED, Snapshot(target=asked["on-demand"], ready=2), placed=2),
        ]
        answer, state = decide_variants(
            variants, Knobs(), state, 1000.0 + second, lambda _, known: (decision, known)
        )
        asked = dict(answer.targets)
        found.append(asked["spot"])

    assert found == [4, 4, 3, 3, 3, 3]


def test_a_model_whose_last_place_was_given_away_is_at_zero() -> None:
    """Its own policy would else ask for the place again, although no request waits."""
    state, seen = PolicyState(), []

    def decide(snapshot: Snapshot, known: PolicyState) -> tuple[Decision, PolicyState]:
        seen.append(snapshot.target)
        return Decision(1, 1, "demand", "", "", load=0.5), known

    for second, target in enumerate((1, 1, 0)):
        now = VariantNow(SERVED, Snapshot(target=target, ready=target), placed=target)
        _, state = decide_variants([now], Knobs(), state, 1000.0 + second, decide)

    assert seen == [1, 1, 0]


FAST, SLOW = replace(SERVED, name="fast", kind="fast"), replace(SERVED, name="slow", assumed_speed=0.25)


def seen_target(asked: int, *then: tuple[ServedVariant, int]) -> int:
    """Return the target that a model's policy sees after a slow variant was asked for `asked` replicas."""
    seen: list[int] = []

    def decide(snapshot: Snapshot, known: PolicyState) -> tuple[Decision, PolicyState]:
        seen.append(snapshot.target)
        return Decision(asked, asked, "demand", "", "", load=float(asked)), known

    first = [VariantNow(SLOW, Snapshot(asked, asked), placed=asked)]
    state = decide_variants(first, Knobs(), PolicyState(), 1000.0, decide)[1] if asked else PolicyState()
    variants = [VariantNow(served, Snapshot(target, target), placed=target) for served, target in then]
    decide_variants(variants, Knobs(), state, 1001.0, decide)
    return seen[-1]


def test_target_in_force_is_what_was_granted() -> None:
    assert seen_target(3, (SLOW, 1)) == 1


def test_old_memory_does_not_replace_the_target_in_force() -> None:
    """A new controller reads a memory that is some seconds old."""
    assert seen_target(2, (SLOW, 5)) == 5


def test_another_first_variant_changes_the_unit_of_the_target() -> None:
    assert 0 < seen_target(8, (FAST, 0), (SLOW, 8)) < 4


def test_a_slow_replica_is_not_zero_replicas() -> None:
    assert seen_target(0, (FAST, 0), (SLOW, 1)) == 1


@pytest.mark.parametrize(("mode", "target", "wanted"), [("act", 3, 1), ("advise", 2, 5)])
def test_wanted_counts_neither_delays_nor_mode(
    mode: Literal["act", "advise"], target: int, wanted: int
) -> None:
    now = VariantNow(SERVED, Snapshot(target=target, ready=target), placed=target)
    decision = Decision(target, wanted, "delay", "", "", load=wanted - 0.5)

    found, _ = decide_variants(
        [now], Knobs(mode=mode), PolicyState(), 1000.0, lambda _, known: (decision, known)
    )

    assert (found.decision.target, found.decision.wanted) == (target, wanted)


def test_a_place_that_never_came_hides_no_wait_for_a_node() -> None:
    """Another model gives its place, the load falls before, and later a node comes after 100 s."""
    state = PolicyState()
    for at, target, placed, waits_s, takes in [
        (0.0, 0, 0, 0.0, False),
        (1.0, 1, 0, 0.0, True),
        (9.0, 0, 0, 0.0, False),
        (200.0, 1, 0, 100.0, False),
        (201.0, 1, 1, 0.0, False),
    ]:
        decision = Decision(target, target, "demand", "", "", load=0.5 * target)
        seen = Snapshot(target, placed, pending=int(waits_s > 0), pending_s=waits_s)
        now = VariantNow(SERVED, seen, placed=placed, takes=takes)
        _, state = decide_variants(
            [now], Knobs(), state, 1000.0 + at, lambda _, known, found=decision: (found, known)
        )

    assert state.mix.variants["on-demand"].node_waits_s == (100.0,)


def notes(*variants: VariantNow, knobs: Knobs | None = None) -> tuple[str, ...]:
    """Return the notes about a model that needs two replicas."""
    decision = Decision(2, 2, "demand", "", "", load=2.0)
    found, _ = decide_variants(
        variants, knobs or Knobs(), PolicyState(), 1000.0, lambda _, known: (decision, known)
    )
    return found.decision.notes


def test_price_of_the_mix_leaves_out_replicas_that_it_replaces() -> None:
    cheap = VariantNow(replace(SERVED, name="cheap", usd_per_hour=1.0), Snapshot(target=0, ready=0))
    dear = VariantNow(SERVED, Snapshot(target=2, ready=2), placed=2)

    (note,) = notes(cheap, dear)

    assert note.startswith("mix: 2 cheap, ")
    assert "It costs 2 USD/h." in note


def test_the_only_variant_is_not_said_to_serve_nothing() -> None:
    now = VariantNow(SERVED, Snapshot(target=2, ready=2), placed=2)

    assert not any("serves none" in note for note in notes(now, knobs=Knobs(itl_target_s=0.001)))


def test_dry_variant_that_is_asked_for_nodes_has_no_next_try() -> None:
    now = VariantNow(SERVED, Snapshot(target=2, ready=1, pending=1, pending_s=300.0), placed=1)

    assert notes(now)[-1].startswith("mix: on-demand gets no node. It is asked for, because ")


def test_bounds_act_in_mode_advise() -> None:
    now = VariantNow(SERVED, Snapshot(target=0, ready=0))
    decision = Decision(2, 2, "min_replicas", "", "")

    found, _ = decide_variants(
        [now], Knobs(mode="advise"), PolicyState(), 1000.0, lambda _, known: (decision, known)
    )

    assert found.targets == {"on-demand": 2}


def test_advice_names_the_mix_that_would_be_chosen() -> None:
    now = VariantNow(SERVED, Snapshot(target=2, ready=2), placed=2)
    decision = Decision(2, 5, "mode", "", "", load=4.5)

    found, _ = decide_variants(
        [now], Knobs(mode="advise"), PolicyState(), 1000.0, lambda _, known: (decision, known)
    )

    assert found.decision.notes[0].startswith("mix: 5 on-demand, the cheapest for ")


def test_ready_replicas_do_the_work_before_cheaper_ones() -> None:
    speeds, ready, wanted = {"cheap": 1.0, "fast": 2.0}, {"cheap": 0, "fast": 1}, {"cheap": 3, "fast": 2}

    assert divide(1, speeds, {}, ready, wanted) == {"cheap": 0, "fast": 1}
    assert divide(4, speeds, {}, ready, wanted) == {"cheap": 2, "fast": 1}
    assert divide(9, speeds, {}, ready, wanted) == {"cheap": 3, "fast": 2}


def test_base_counts_as_work_done() -> None:
    assert divide(2, {"a": 1.0, "b": 1.0}, {"b": 1}, {"a": 5, "b": 5}) == {"a": 1, "b": 1}
    assert divide(0, {"a": 1.0}, {"a": 1}, {"a": 5}) == {"a": 1}
