from dataclasses import replace
from typing import Any

import pytest

from loadtests.fleet import Fleet, fleets
from loadtests.record import Record, Sample
from loadtests.scenario import Scenario
from tests.loadtests import samples
from tests.loadtests.made_up_server import MODEL
from tests.loadtests.samples import error, record


def look(at_s: float, ready: int, **fields: Any) -> Sample:
    return Sample(at_s=at_s, model=MODEL, ready=ready, **fields)


def one_fleet(
    looks: list[Sample], records: list[Record] | None = None, duration_s: float = 100.0, **fields: Any
) -> Fleet:
    of = samples.scenario(**fields)
    run = samples.run(of, records or [record()], samples=tuple(looks), duration_s=duration_s)
    (fleet,) = fleets(run, Scenario.model_validate(run.scenario))
    return fleet


def test_gpu_seconds_are_steps_between_looks_times_gpus() -> None:
    fleet = one_fleet(
        [look(0, 0, starting=2, pending=3), look(10, 2, starting=0, draining=0), look(50, 1, draining=1)],
        cost={"gpus_per_replica": 4, "price_per_gpu_hour": 9.0},
    )

    used = fleet.gpu_seconds
    assert (used.ready, used.starting, used.draining) == (4 * (80 + 50), 4 * 20, 4 * 50)
    assert used.total == 800
    assert fleet.dollars == pytest.approx(2.0)


def test_an_unreported_count_keeps_its_last_value() -> None:
    fleet = one_fleet([look(-5, 2), look(10, -1), look(20, 0)])

    assert fleet.gpu_seconds.ready == 40
    assert fleet.peak_ready == 2


def test_unreported_and_unused_models_have_no_fleet() -> None:
    of = samples.scenario()
    untold = (look(0, -1), Sample(at_s=0, model="other", ready=1))

    assert fleets(samples.run(of, [record()], samples=untold), of) == ()


def test_scale_events_are_replicas_that_come_and_go() -> None:
    looks = [look(0, 0, target=0), look(1, 0, target=3), look(2, 3, target=3), look(3, 1, target=1)]
    broken = [record(outcome="broken"), record()]

    fleet = one_fleet(looks, broken)

    assert (fleet.scale_events, fleet.target_changes) == (5, 2)
    assert fleet.broken_per_1000_events == 200
    assert one_fleet([look(0, 1)], broken).broken_per_1000_events is None


def test_the_wait_for_a_replica_counts_from_the_first_cold_request() -> None:
    looks = [look(0, 0), look(20, 0), look(21, 1)]
    held = record(at_s=2.5, pieces_s=(21.0,), cold_wait_s=18.0)

    assert one_fleet(looks, [held, record(at_s=1.0)]).held_to_ready_s == 18.5
    assert one_fleet(looks, [record(at_s=1.0)]).held_to_ready_s is None
    assert one_fleet(looks[:2], [replace(held, pieces_s=(), outcome="failed")]).held_to_ready_s is None
    assert one_fleet([look(0, 1)], [held]).held_to_ready_s is None


def test_an_answer_between_two_looks_dates_the_replica_it_came_from() -> None:
    fleet = one_fleet(
        [look(0, 0), look(20, 0), look(30, 1)], [record(at_s=2.5, pieces_s=(21.0,), cold_wait_s=18.0)]
    )

    assert (fleet.first_ready_s, fleet.held_to_ready_s) == (21.0, 18.5)


def test_the_way_back_counts_from_the_last_request_of_any_outcome() -> None:
    looks = [look(0, 2), look(30, 1), look(40, 0)]
    records = [record(ended_s=5.0), error("failed", 500, "x", ended_s=12.0)]

    assert one_fleet(looks, records, scaling={"returns_to": 1}).returned_s == 18.0
    assert one_fleet(looks, records, scaling={"returns_to": 0}).returned_s == 28.0
    assert one_fleet(looks, records, scaling={"returns_to": 2}).returned_s == 0.0
    assert one_fleet(looks[:2], records, scaling={"returns_to": 0}).returned_s is None
    assert one_fleet(looks, records).returned_s is None
