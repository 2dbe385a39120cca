"""What must hold of the policy whatever comes in. Closed loops are in `test_decide_loops.py`."""

import json
import math
import re
from dataclasses import asdict, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.policy.capacity_model import MOST_REPLICAS
from serve_app.policy.decide import Decision, next_decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState, restore
from serve_app.settings.knobs import PERCENTILES, Knobs, Schedule
from serve_app.wire.signals import ENGINE_FIELDS, INGRESS_FIELDS, EngineSignals, IngressSignals, Reading
from tests.policy.build import NOW, PolicyLoop, engine, ingress, snapshot

# Anything a float can be, plausible numbers most of the time.
numbers = st.one_of(
    st.floats(0, 1000), st.floats(0, 1e6), st.integers(0, 100).map(float), st.floats(allow_nan=True)
)
ages = st.one_of(st.floats(0, 12), st.sampled_from([0.0, 10.0, 10.1, -1.0, math.nan, math.inf, -math.inf]))


def reports(kind: type, names: tuple[str, ...]) -> st.SearchStrategy[Reading[Any]]:
    values = st.dictionaries(st.sampled_from(names), numbers, max_size=12)
    return st.builds(Reading, values.map(lambda given_: kind(**given_)), ages)


engines = st.dictionaries(st.sampled_from("abcde"), reports(EngineSignals, ENGINE_FIELDS), max_size=4)
ingresses = st.dictionaries(st.sampled_from("xyz"), reports(IngressSignals, INGRESS_FIELDS), max_size=3)
snapshots = st.builds(
    Snapshot,
    target=st.integers(0, 12),
    ready=st.integers(0, 6),
    ingress_ready=st.integers(0, 3),
    engines=engines,
    ingress=ingresses,
    draining=st.integers(0, 3),
    starting=st.integers(0, 3),
    pending=st.integers(0, 3),
    pending_s=st.floats(0, 1e4),
    warm_node=st.booleans(),
    warm_node_start_s=st.one_of(st.none(), st.floats(0, 600), st.sampled_from([math.nan, math.inf, -1.0])),
    cold_node_start_s=st.one_of(st.none(), st.floats(0, 600), st.sampled_from([math.nan, math.inf, -1.0])),
)


@st.composite
def any_knobs(draw: st.DrawFn) -> Knobs:
    least, most = sorted((draw(st.integers(0, 8)), draw(st.integers(1, 12))))
    delays = st.sampled_from([0.0, 1.0, 5.0, 30.0, 300.0])
    schedules = [Schedule(start="22:00", end="23:00", min_replicas=most)] if draw(st.booleans()) else []
    return Knobs(
        mode=draw(st.sampled_from(["act", "advise"])),
        min_replicas=least,
        max_replicas=most,
        ttft_target_s=draw(st.sampled_from([1e-6, 0.05, 0.2, 5.0])),
        ttft_percentile=draw(st.sampled_from(PERCENTILES)),
        itl_target_s=draw(st.sampled_from([1e-6, 0.025, 1.0])),
        queue_target_per_replica=draw(st.sampled_from([1e-9, 1.0, 8.0, 1e5])),
        headroom=draw(st.sampled_from([0.0, 1.0, 10.0])),
        upscale_delay_s=draw(delays),
        downscale_delay_s=draw(delays),
        downscale_to_zero_delay_s=draw(delays),
        forecast=draw(st.booleans()),
        forecast_quantile=draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        schedules=tuple(schedules),
    )


gaps = st.one_of(st.just(1.0), st.floats(0, 30), st.sampled_from([0.0, 1e-9, 5.0, 3600.0, 1e6, -0.5, -1e5]))
histories = st.lists(st.tuples(gaps, snapshots), min_size=1, max_size=6)


def live(knobs: Knobs, history: list[tuple[float, Snapshot]]) -> list[tuple[Snapshot, Decision]]:
    state, now, made = PolicyState(), NOW, []
    for gap, seen in history:
        now += gap
        decision, state = next_decision(seen, knobs, state, now)
        made.append((seen, decision))
        json.dumps(asdict(state), allow_nan=False)
    return made


def bounds_hold_and_every_number_is_finite(knobs: Knobs, history: list[tuple[float, Snapshot]]) -> None:
    for _, decision in live(knobs, history):
        assert type(decision.target) is int
        assert knobs.min_replicas <= decision.target <= knobs.max_replicas
        assert knobs.min_replicas <= decision.wanted <= knobs.max_replicas
        why = decision
        json.dumps([dict(why.signals), dict(why.ages_s)], allow_nan=False)
        assert all(type(term.replicas) is int and term.replicas >= 0 for term in why.terms)
        assert why.reason
        assert why.counterfactual


_NUMBER = r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_SHARED = re.compile(rf"({_NUMBER}) (?:requests?/s|requests? (?:is|are) waiting|tokens|s of prefill)\.")
_ONE_SERVES = re.compile(rf"One replica .* ({_NUMBER}) .*so ([\d,]+|no) replica")


def sentences_are_short_and_a_reader_who_divides_gets_their_replicas(
    knobs: Knobs, history: list[tuple[float, Snapshot]]
) -> None:
    for _, decision in live(knobs, history):
        why = decision
        told = [term.why for term in why.terms]
        for text in (why.reason, why.counterfactual, *told, *(clamp.effect for clamp in why.clamps)):
            for sentence in re.split(r"(?<=\.) ", text):
                assert sentence.endswith(".")
                assert len(sentence.split()) < 25
                assert len(re.findall(_NUMBER, sentence)) <= 2
        for text in told:
            if (one := _ONE_SERVES.search(text)) is not None:
                before = [float(n.replace(",", "")) for n in _SHARED.findall(text[: one.start()])]
                replicas = min(math.ceil(before[-1] / float(one[1].replace(",", "")) - 1e-6), MOST_REPLICAS)
                assert int(one[2].replace("no", "0").replace(",", "")) in (replicas, max(replicas, 1))


def advise_never_moves_a_target_that_is_within_the_bounds(
    knobs: Knobs, history: list[tuple[float, Snapshot]]
) -> None:
    for seen, decision in live(knobs.model_copy(update={"mode": "advise"}), history):
        if knobs.min_replicas <= seen.target <= knobs.max_replicas:
            assert decision.target == seen.target


def a_memory_that_went_through_json_decides_as_the_one_that_did_not(
    knobs: Knobs, history: list[tuple[float, Snapshot]]
) -> None:
    state, now = PolicyState(), NOW
    for gap, seen in history:
        now += gap
        restored = restore(json.loads(json.dumps(asdict(state))))
        decided = next_decision(seen, knobs, state, now)
        assert next_decision(seen, knobs, restored, now) == decided
        state = decided[1]


def a_memory_lost_at_any_moment_takes_nothing_away_before_it_has_watched_again(
    knobs: Knobs, history: list[tuple[float, Snapshot]], lost_at: int
) -> None:
    state, now, since = PolicyState(), NOW, NOW
    for number, (gap, seen) in enumerate(history):
        now += gap
        if number == lost_at:
            state = PolicyState()
        if state.since is None or now < since:
            since = now
        decision, state = next_decision(seen, knobs, state, now)
        observed = now - since
        idle_through = seen.target and not decision.target
        shortest = (min if idle_through else max)(knobs.downscale_delay_s, knobs.downscale_to_zero_delay_s)
        if 0 <= observed < shortest:
            assert decision.target >= min(seen.target, knobs.max_replicas)


def a_report_from_nobody_takes_nothing_away(knobs: Knobs, history: list[tuple[float, Snapshot]]) -> None:
    silent = replace(history[-1][1], engines={}, ready=max(1, history[-1][1].ready))

    *_, (seen, decision) = live(knobs, [*history, (1.0, silent)])

    assert decision.target >= min(seen.target, knobs.max_replicas)


@settings(max_examples=50)
@given(any_knobs(), histories, st.integers(0, 7))
def test_whatever_comes_in(knobs: Knobs, history: list[tuple[float, Snapshot]], lost_at: int) -> None:
    """Histories are drawn once for all: drawing one takes twenty times as long as deciding on it."""
    bounds_hold_and_every_number_is_finite(knobs, history)
    sentences_are_short_and_a_reader_who_divides_gets_their_replicas(knobs, history)
    advise_never_moves_a_target_that_is_within_the_bounds(knobs, history)
    a_memory_that_went_through_json_decides_as_the_one_that_did_not(knobs, history)
    a_memory_lost_at_any_moment_takes_nothing_away_before_it_has_watched_again(knobs, history, lost_at)
    a_report_from_nobody_takes_nothing_away(knobs, history)


# More load of the same kind never asks for less.

loads = st.fixed_dictionaries(
    {
        "waiting": st.integers(0, 60),
        "running": st.integers(0, 60),
        "held": st.integers(0, 60),
        "arrivals": st.integers(0, 40),
    }
)
PROMPT, BODY = 800, 3600


def under(load: dict[str, int], target: int, ready: int, total: float) -> Snapshot:
    """A fleet of like replicas, the first of which has it all, and requests of one kind."""
    first = engine(
        waiting_requests=load["waiting"],
        waiting_tokens=load["waiting"] * PROMPT,
        running_requests=load["running"],
        running_tokens=load["running"] * (PROMPT + 60),
        ongoing_requests=load["waiting"] + load["running"],
    )
    front = ingress(
        arrivals_total=total + load["arrivals"],
        arrived_bytes_total=(total + load["arrivals"]) * BODY,
        held_requests=load["held"],
        held_bytes=load["held"] * BODY,
        oldest_held_s=5.0 if load["held"] else 0.0,
    )
    return snapshot(*[first, *[engine()] * (ready - 1)][:ready], at={"i": front}, target=target)


@given(
    knobs=any_knobs(),
    past=st.lists(loads, max_size=6),
    load=loads,
    more=loads,
    fleet=st.tuples(st.integers(0, 6), st.integers(0, 6)),
)
def test_a_larger_load_never_gets_a_smaller_target(
    knobs: Knobs,
    past: list[dict[str, int]],
    load: dict[str, int],
    more: dict[str, int],
    fleet: tuple[int, int],
) -> None:
    target, ready = max(fleet), min(fleet)
    # The forecast weighs demand by requests: a few more in a quiet moment can lower the mean of what they
    # felt. It rises with a load that is larger all along, which the next test has.
    loop, total = PolicyLoop(knobs.model_copy(update={"forecast": False})), 0.0
    for was in past:
        loop.decide(under(was, target, ready, total), 5.0)
        total += was["arrivals"]
    larger = {name: load[name] + more[name] for name in load}

    small, _ = next_decision(under(load, target, ready, total), loop.knobs, loop.state, loop.now + 5)
    large, _ = next_decision(under(larger, target, ready, total), loop.knobs, loop.state, loop.now + 5)

    assert large.target >= small.target
    assert large.wanted >= small.wanted


@settings(max_examples=8)
@given(rps=st.floats(0.1, 30), more=st.floats(1.0, 3.0), waiting=st.integers(0, 30))
def test_a_larger_load_all_along_never_gets_a_smaller_target(rps: float, more: float, waiting: int) -> None:
    def after_two_minutes(factor: float) -> int:
        loop = PolicyLoop(Knobs(min_replicas=0, max_replicas=50, downscale_delay_s=20))
        total, target = 0.0, 1
        for _ in range(120):
            load = {"waiting": int(waiting * factor), "running": 1, "held": 0, "arrivals": 0}
            total += rps * factor
            target = loop.decide(under(load, target, target, total)).target
        return target

    assert after_two_minutes(more) >= after_two_minutes(1.0)


@given(requests=st.integers(1, 300), queue_target=st.integers(1, 32), most=st.integers(1, 40))
def test_burst_on_cold_model_gets_all_replicas_at_once(requests: int, queue_target: int, most: int) -> None:
    knobs = Knobs(min_replicas=0, max_replicas=most, queue_target_per_replica=queue_target)
    loop = PolicyLoop(knobs)
    loop.decide_for(60, snapshot())

    targets = []
    for look in range(8):
        front = ingress(
            arrivals_total=requests,
            arrived_bytes_total=requests * 200.0,
            held_requests=requests,
            held_bytes=requests * 200.0,
            oldest_held_s=0.1 + 0.5 * look,
        )
        targets.append(loop.decide(snapshot(at={"i0": front}), 0.5).target)

    first = next(target for target in targets if target)
    assert first == min(most, max(math.ceil(requests / queue_target), first))
    assert first >= min(most, math.ceil(requests / queue_target))
    assert targets.index(first) <= 2
    if requests <= 24:
        assert first == min(most, math.ceil(requests / queue_target))
