import math

import pytest

from serve_app.policy.reports import Snapshot, observe
from serve_app.policy.state import PolicyState
from serve_app.wire.signals import ENGINE_FIELDS, STALE_AFTER_S
from tests.policy.build import NOW, engine, ingress, snapshot


def test_fresh_reports_add_up() -> None:
    seen, _ = observe(
        snapshot(
            engine(running_requests=3, running_tokens=3000, waiting_requests=2, waiting_tokens=700),
            engine(running_requests=1, running_tokens=500, waiting_requests=4, waiting_tokens=900),
            at={
                "i0": ingress(held_requests=2, held_bytes=800, oldest_held_s=3, newest_held_s=2),
                "i1": ingress(held_requests=1, held_bytes=400, oldest_held_s=7, newest_held_s=1),
            },
            ingress_ready=2,
        ),
        PolicyState(),
        NOW,
    )

    assert (seen.running_requests, seen.running_tokens) == (4, 3500)
    assert (seen.waiting_requests, seen.waiting_tokens) == (6, 1600)
    assert (seen.held_requests, seen.held_tokens) == (3, 300)
    assert (seen.oldest_held_s, seen.newest_held_s) == (7, 1)
    assert (seen.queued_requests, seen.queued_tokens) == (9, 1900)
    assert (seen.unknown_engines, seen.ingress_known) == (0, True)


@pytest.mark.parametrize(
    ("signals", "running", "waiting_tokens"),
    [
        ({"running_requests": 1, "waiting_requests": 2, "ongoing_requests": 8}, 6, 0),
        ({"running_requests": -5, "waiting_tokens": -1}, 0, 0),  # negative numbers count as nothing
    ],
)
def test_requests_open_on_the_data_plane_count_as_running(
    signals: dict[str, float], running: float, waiting_tokens: float
) -> None:
    seen, _ = observe(snapshot(engine(**signals)), PolicyState(), NOW)

    assert (seen.running_requests, seen.waiting_tokens) == (running, waiting_tokens)


def test_background_work_is_observed_apart() -> None:
    seen, state = observe(
        snapshot(
            engine(
                ongoing_requests=6,
                background_ongoing_requests=5,
                background_running_requests=2,
                background_waiting_requests=1,
                background_running_tokens=2000,
                background_waiting_tokens=300,
            ),
            engine(ongoing_requests=3, background_running_requests=2, background_waiting_requests=1),
            at={"i0": ingress(background_held_requests=7, background_held_bytes=800)},
        ),
        PolicyState(),
        NOW,
    )

    # One request of another lane is open on the data plane, and two of the lane background.
    assert (seen.running_requests, seen.running_tokens) == (1, 0)
    assert (seen.background_running_requests, seen.background_waiting_requests) == (6, 2)
    assert (seen.background_held_requests, seen.background_requests) == (7, 15)
    assert seen.background_tokens == 500
    assert (seen.queued_requests, seen.queued_tokens, state.demand.buckets) == (0, 0, (0,))


# Absent, stale and zero are three different things.


def test_a_ready_replica_without_a_report_is_unknown() -> None:
    seen, state = observe(snapshot(engine(), ready=2), PolicyState(), NOW)

    assert seen.unknown_engines == 1
    assert not seen.idle
    assert state.idle_since is None


def test_stale_report_is_unused_and_noted() -> None:
    old = engine(age_s=STALE_AFTER_S + 0.1, waiting_requests=50)

    seen, _ = observe(snapshot(engine(), old), PolicyState(), NOW)

    assert seen.waiting_requests == 0
    assert seen.unknown_engines == 1
    assert seen.notes == ("engine e1: The report is 10 s old, so it is not used.",)
    assert seen.ages_s["e1"] == pytest.approx(10.1)


def test_only_a_report_of_zeros_is_idle() -> None:
    seen, state = observe(snapshot(engine(), engine()), PolicyState(), NOW)

    assert (seen.idle, state.idle_since) == (True, NOW)
    assert observe(snapshot(), PolicyState(), NOW)[0].idle
    assert not observe(snapshot(at={}), PolicyState(), NOW)[0].idle
    assert not observe(snapshot(at={"i0": ingress(age_s=60)}), PolicyState(), NOW)[0].idle
    assert not observe(snapshot(ingress_ready=2), PolicyState(), NOW)[0].idle


@pytest.mark.parametrize("age", [math.nan, math.inf, -math.inf, -1.0])
def test_an_age_that_is_none_is_stale(age: float) -> None:
    seen, _ = observe(snapshot(engine(age_s=age)), PolicyState(), NOW)

    assert seen.unknown_engines == 1
    assert all(math.isfinite(value) for value in seen.ages_s.values())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300, -1e16])
def test_a_report_with_an_impossible_number_is_unused(bad: float) -> None:
    for name in ENGINE_FIELDS:
        seen, _ = observe(snapshot(engine(), engine(**{name: bad})), PolicyState(), NOW)
        assert seen.unknown_engines == 1, name
        assert seen.notes == ("engine e1: The report has numbers that are not finite, so it is not used.",)


def with_totals(arrivals: float, finished: float = 0.0, age_s: float = 0.2) -> Snapshot:
    return snapshot(
        engine(
            age_s,
            finished_requests_total=finished,
            finished_prompt_tokens_total=1000 * finished,
            prompt_tokens_total=800 * finished,
            finished_generation_tokens_total=100 * finished,
        ),
        at={"i0": ingress(arrivals_total=arrivals, arrived_bytes_total=4000 * arrivals)},
    )


def after(*seen: Snapshot) -> PolicyState:
    state = PolicyState()
    for second, item in enumerate(seen):
        _, state = observe(item, state, NOW + second)
    return state


@pytest.mark.parametrize("seen", [[with_totals(1e6, 1e6)], [with_totals(100, 90), with_totals(3, 2)]])
def test_first_totals_and_falling_totals_count_nothing(seen: list[Snapshot]) -> None:
    state = after(*seen)

    assert (sum(state.demand.buckets), state.sums.finished) == (0, 0)


def test_older_report_counts_no_arrival_twice() -> None:
    # A report sent at a cold start is newer than what Ray sends next; see `ColdReports` of the ingress.
    state = after(with_totals(100), with_totals(107), with_totals(103), with_totals(109))

    assert sum(state.demand.buckets) == 9
    assert state.sums.bytes == pytest.approx(9 * 4000, rel=0.001)  # they fade


def test_arrivals_are_differences_of_totals() -> None:
    state = after(with_totals(100, 90), with_totals(107, 94))

    assert sum(state.demand.buckets) == 7
    assert state.sums.finished == 4
    assert state.sums.mix().prompt_tokens == 1000
    assert state.sums.mix().computed_share == pytest.approx(0.8)


def test_a_replica_that_was_away_counts_from_its_return() -> None:
    # A change of `user_config` takes ingress replicas out of Ray's running ones for a second or two.
    away = Snapshot(target=1, ready=0, ingress_ready=0)

    state = after(with_totals(5000, 4000), with_totals(5003, 4002), away, with_totals(5009, 4006))

    assert sum(state.demand.buckets) == 3
    assert state.sums.finished == 2


def test_a_silent_ingress_neither_adds_to_demand_nor_empties_it() -> None:
    before = after(with_totals(0), with_totals(10))
    _, silent = observe(snapshot(at={"i0": ingress(age_s=30)}), before, NOW + 20)

    assert silent.demand == before.demand


def stepped(age_s: float, step_s: float = 0.013) -> Snapshot:
    return snapshot(engine(age_s, steps=70, step_s=step_s, step_batch=5, step_kv_tokens=5000))


def test_a_report_that_is_seen_twice_teaches_once() -> None:
    _, once = observe(stepped(0.1), PolicyState(), NOW)
    _, twice = observe(stepped(0.6), once, NOW + 0.5)
    _, new = observe(stepped(0.1), twice, NOW + 1.0)

    assert once.service.steps == 70
    assert twice.service == once.service
    assert new.service.steps == pytest.approx(140, rel=0.01)


def test_learning_goes_on_after_a_clock_is_set_back() -> None:
    _, before = observe(stepped(0.1), PolicyState(), NOW)
    _, after_ = observe(stepped(0.1), before, NOW - 3600)

    assert after_.service.steps == pytest.approx(140, rel=0.01)
    assert after_.since == NOW - 3600


@pytest.mark.parametrize("step_s", [0.0, -1.0, 61.0])
def test_steps_that_cannot_be_teach_nothing(step_s: float) -> None:
    _, state = observe(stepped(0.1, step_s), PolicyState(), NOW)

    assert state.service == PolicyState().service


def test_idle_begins_with_the_last_work_and_not_before() -> None:
    state = after(
        with_totals(0, 0), with_totals(1, 0), with_totals(1, 1), with_totals(1, 1), with_totals(1, 1)
    )

    assert state.idle_since == NOW + 3


def test_kv_cache_size_is_remembered_at_zero() -> None:
    _, state = observe(snapshot(engine(kv_cache_tokens=123_456)), PolicyState(), NOW)
    seen, _ = observe(snapshot(), state, NOW + 1)

    assert seen.kv_cache_tokens == 123_456
