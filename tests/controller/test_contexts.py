import math
from dataclasses import asdict
from typing import Any

from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue

from serve_app.controller.contexts import (
    count_phases,
    engine_readings,
    ingress_readings,
    ongoing_of_ingress,
    reported_readings,
)
from serve_app.wire.ingress_reports import IngressReport
from serve_app.wire.signals import (
    ENGINE_FIELDS,
    INGRESS_FIELDS,
    EngineSignals,
    IngressSignals,
    ingress_key,
)
from tests.policy.build import NOW

DEPLOYMENT = DeploymentID("Engine-a", "tideserve")
A, B, C = (ReplicaID(name, DEPLOYMENT) for name in "abc")


def raw(*reports: tuple[ReplicaID, dict[str, float], float]) -> dict[str, dict[ReplicaID, list[Any]]]:
    """Ray's raw metrics, as it would lay out these reports: (replica, values, time) each."""
    found: dict[str, dict[ReplicaID, list[Any]]] = {}
    for replica, values, at in reports:
        for name, value in values.items():
            found.setdefault(name, {}).setdefault(replica, []).append(TimeStampedValue(at, value))
    return found


def said(**signals: float) -> dict[str, float]:
    return asdict(EngineSignals(**signals))


def test_newest_report_of_each_replica_has_its_age() -> None:
    readings = engine_readings(
        raw(
            (A, said(running_requests=1), NOW - 3),
            (A, said(running_requests=2), NOW - 1),
            (B, said(waiting_tokens=9), NOW - 2),
        ),
        NOW,
    )

    assert set(readings) == {"a", "b"}
    assert readings["a"].signals == EngineSignals(running_requests=2)
    assert (readings["a"].age_s, readings["b"].age_s) == (1, 2)
    assert readings["b"].signals.waiting_tokens == 9


def test_every_field_arrives_where_it_belongs() -> None:
    numbers = {name: float(index) for index, name in enumerate(ENGINE_FIELDS)}

    assert asdict(engine_readings(raw((A, numbers, NOW)), NOW)["a"].signals) == numbers


def test_a_replica_that_lacks_a_field_has_made_no_report() -> None:
    partial = said()
    del partial["itl_p99_s"]

    assert set(engine_readings(raw((A, said(), NOW), (B, partial, NOW)), NOW)) == {"a"}
    assert engine_readings(raw((B, partial, NOW)), NOW) == {}


def test_an_empty_series_is_no_report_and_silences_no_other() -> None:
    columns = raw((A, said(), NOW), (B, said(), NOW))
    columns["running_tokens"][A] = []

    assert set(engine_readings(columns, NOW)) == {"b"}


def test_columns_may_have_replicas_in_any_order() -> None:
    columns = raw((A, said(running_requests=1), NOW), (B, said(running_requests=2), NOW))
    columns["waiting_requests"] = dict(reversed(columns["waiting_requests"].items()))
    columns["waiting_requests"][A][-1].value = 7.0

    readings = engine_readings(columns, NOW)

    assert (readings["a"].signals.running_requests, readings["a"].signals.waiting_requests) == (1, 7)
    assert (readings["b"].signals.running_requests, readings["b"].signals.waiting_requests) == (2, 0)


def test_no_metrics_are_no_readings() -> None:
    assert engine_readings({}, NOW) == {}
    assert ingress_readings({}, "Engine-a", NOW) == {}
    assert ongoing_of_ingress({}, NOW) == {}


def test_a_report_from_the_future_has_age_zero() -> None:
    readings = engine_readings(raw((A, said(), NOW + 5), (B, said(), math.nan), (C, said(), math.inf)), NOW)

    assert {name: reading.age_s for name, reading in readings.items()} == {"a": 0.0}


def test_values_that_are_not_finite_reach_the_policy() -> None:
    assert math.isnan(engine_readings(raw((A, said(itl_p50_s=math.nan), NOW)), NOW)["a"].signals.itl_p50_s)


def test_ingress_replica_reports_models_by_deployment() -> None:
    values = {
        **{ingress_key("Engine-a", name): 1.0 for name in INGRESS_FIELDS},
        **{ingress_key("Engine-b", name): 2.0 for name in INGRESS_FIELDS},
        "ongoing_requests": 30.0,
    }
    columns = raw((A, values, NOW - 1))

    assert ingress_readings(columns, "Engine-a", NOW)["a"].signals == IngressSignals(
        *[1.0] * len(INGRESS_FIELDS)
    )
    assert ingress_readings(columns, "Engine-b", NOW)["a"].signals.held_requests == 2.0
    assert ingress_readings(columns, "Engine-c", NOW) == {}
    assert ongoing_of_ingress(columns, NOW) == {"a": (30.0, 1.0)}


def written(held: float, at: float) -> IngressReport:
    signals = asdict(IngressSignals(held_requests=held))
    return IngressReport(at, {ingress_key("Engine-a", name): value for name, value in signals.items()})


def test_written_reports_count_where_ray_has_none() -> None:
    reports = {"drains": written(9, NOW - 1), "runs": written(8, NOW)}

    readings = reported_readings(reports, "Engine-a", {"runs"}, NOW)

    assert set(readings) == {"drains"}
    assert readings["drains"].signals == IngressSignals(held_requests=9)
    assert readings["drains"].age_s == 1.0


def test_reports_of_killed_replicas_and_other_models_do_not_count() -> None:
    reports = {"killed": written(9, NOW - 11), "another": IngressReport(NOW, {"Engine-b:held_requests": 1.0})}

    assert reported_readings(reports, "Engine-a", set(), NOW) == {}


def document(phase: str, **more: float) -> dict[str, Any]:
    return {"phase": phase, "since": 0.0, "durations_s": {}, **more}


def test_starting_and_draining_replicas_are_counted() -> None:
    phases = {
        "loading": document("imports"),
        "up, not in service yet": document("ready"),
        "up": document("ready"),
        "broken": document("failed"),
        "leaving": document("draining"),
    }

    assert count_phases(phases, frozenset({"up"}), 100.0) == (2, 1)
    assert count_phases({}, frozenset(), 100.0) == (0, 0)


def test_a_replica_killed_while_draining_stops_counting() -> None:
    """It leaves its document, and its GPU is free."""
    phases = {"leaving": document("draining", until=400.0)}

    assert count_phases(phases, frozenset(), 400.0) == (0, 1)
    assert count_phases(phases, frozenset(), 400.5) == (0, 0)
