import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue

from serve_app.controller.contexts import (
    Seen,
    SnapshotBuilder,
    count_phases,
    engine_readings,
    ingress_readings,
    ongoing_of_ingress,
    reported_readings,
)
from serve_app.controller.document_exchange import Deployment, Inbox
from serve_app.policy.reports import observe
from serve_app.policy.state import PolicyState
from serve_app.wire.ingress_reports import IngressReport
from serve_app.wire.signals import (
    ENGINE_FIELDS,
    ENGINE_IDENTITY,
    INGRESS_FIELDS,
    STALE_AFTER_S,
    EngineSignals,
    IngressSignals,
    ingress_key,
)
from tests.policy.build import NOW

DEPLOYMENT = DeploymentID("Engine-a", "tideserve")
A, B, C = (ReplicaID(name, DEPLOYMENT) for name in "abc")


def raw(*reports: tuple[ReplicaID, dict[str, float], float]) -> dict[ReplicaID, dict[str, list[Any]]]:
    """These reports as Ray keeps them: (replica, values, time) each."""
    found: dict[ReplicaID, dict[str, list[Any]]] = {}
    for replica, values, at in reports:
        for name, value in values.items():
            found.setdefault(replica, {}).setdefault(name, []).append(TimeStampedValue(at, value))
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
        Seen(),
    )

    assert set(readings) == {"a", "b"}
    assert readings["a"].signals == EngineSignals(running_requests=2)
    assert (readings["a"].age_s, readings["b"].age_s) == (1, 2)
    assert readings["b"].signals.waiting_tokens == 9


def test_replica_of_a_former_model_reports_its_load_in_all_lanes() -> None:
    load = {
        "running_requests": 1.0,
        "ongoing_requests": 5.0,
        "background_running_requests": 2.0,
        "background_waiting_requests": 1.0,
        "background_ongoing_requests": 3.0,
    }
    reported = {**said(**load, itl_count=9.0), ENGINE_IDENTITY: 1.0}

    reading = engine_readings(raw((A, reported, NOW)), NOW, Seen(), "a 7B")["a"]

    assert reading.signals == EngineSignals(**load)


def test_every_field_arrives_where_it_belongs() -> None:
    numbers = {name: float(index) for index, name in enumerate(ENGINE_FIELDS)}

    assert asdict(engine_readings(raw((A, numbers, NOW)), NOW, Seen())["a"].signals) == numbers


def test_a_replica_that_lacks_a_field_has_made_no_report() -> None:
    partial = said()
    del partial["itl_p99_s"]

    assert set(engine_readings(raw((A, said(), NOW), (B, partial, NOW)), NOW, Seen())) == {"a"}
    assert engine_readings(raw((B, partial, NOW)), NOW, Seen()) == {}


def test_an_empty_series_is_no_report_and_silences_no_other() -> None:
    reports = raw((A, said(), NOW), (B, said(), NOW))
    reports[A]["running_tokens"] = []

    assert set(engine_readings(reports, NOW, Seen())) == {"b"}


def test_a_report_from_the_future_has_age_zero() -> None:
    readings = engine_readings(
        raw((A, said(), NOW + 5), (B, said(), math.nan), (C, said(), math.inf)), NOW, Seen()
    )

    assert {name: reading.age_s for name, reading in readings.items()} == {"a": 0.0}


def test_ingress_replica_reports_models_by_deployment() -> None:
    values = {
        **{ingress_key("Engine-a", name): 1.0 for name in INGRESS_FIELDS},
        **{ingress_key("Engine-b", name): 2.0 for name in INGRESS_FIELDS},
        "ongoing_requests": 30.0,
    }
    reports = raw((A, values, NOW - 1))

    assert ingress_readings(reports, "Engine-a", NOW, Seen())["a"].signals == IngressSignals(
        *[1.0] * len(INGRESS_FIELDS)
    )
    assert ingress_readings(reports, "Engine-b", NOW, Seen())["a"].signals.held_requests == 2.0
    assert ingress_readings(reports, "Engine-c", NOW, Seen()) == {}
    assert ongoing_of_ingress(reports, NOW, Seen()) == {"a": (30.0, 1.0)}


def written(held: float, at: float) -> IngressReport:
    signals = asdict(IngressSignals(held_requests=held))
    return IngressReport(at, {ingress_key("Engine-a", name): value for name, value in signals.items()})


def test_written_reports_count_where_ray_has_none() -> None:
    reports = {"drains": written(9, NOW - 1), "runs": written(8, NOW)}

    readings = reported_readings(reports, "Engine-a", {"runs"}, NOW, Seen())

    assert set(readings) == {"drains"}
    assert readings["drains"].signals == IngressSignals(held_requests=9)
    assert readings["drains"].age_s == 1.0


def test_reports_of_killed_replicas_and_other_models_do_not_count() -> None:
    reports = {"killed": written(9, NOW - 11), "another": IngressReport(NOW, {"Engine-b:held_requests": 1.0})}

    assert reported_readings(reports, "Engine-a", set(), NOW, Seen()) == {}


def document(phase: str, **more: float) -> dict[str, Any]:
    return {"phase": phase, "since": 0.0, "durations_s": {}, **more}


def test_starting_and_draining_replicas_are_counted() -> None:
    phases = {
        "loading": document("imports"),
        "up, not in service yet": document("ready"),
        "up": document("ready"),
        "broken": document("failed"),
        "leaving": document("draining"),
        "leaving until now": document("draining", until=100.0),
        "killed while leaving": document("draining", until=99.5),
    }

    assert count_phases(phases, frozenset({"up"}), 100.0) == (2, 2)


skews = st.floats(-30.0, 30.0)
drifts = st.floats(-1e-3, 1e-3)
"""Seconds a second: ten times what a bad quartz has."""
CALL_S = 0.5


class Replica:
    """A replica with a clock of its own that reports once a second, until it dies."""

    def __init__(self, skew_s: float, drift: float, dies_at: float = 1e9) -> None:
        self.skew_s, self.drift, self.dies_at = skew_s, drift, dies_at

    def stamp(self, at: float) -> float:
        """Return its newest stamp `at` seconds after the beginning."""
        reported = float(int(min(at, self.dies_at)))
        return NOW + reported * (1.0 + self.drift) + self.skew_s


@given(skew_s=skews, drift=drifts)
def test_dead_replica_is_stale_after_ten_seconds(skew_s: float, drift: float) -> None:
    seen, replica = Seen(), Replica(skew_s, drift, dies_at=20.0)
    calls = [CALL_S * turn for turn in range(120)]
    ages = [seen.ages("reports", {"r": replica.stamp(at)}, NOW + at)["r"] for at in calls]

    fresh = [at for at, age in zip(calls, ages, strict=True) if at >= 1.0 and age <= STALE_AFTER_S]
    assert fresh == [at for at in calls if 1.0 <= at <= 20.0 + STALE_AFTER_S]


@given(skew_s=skews, drift=drifts)
def test_each_report_counts_once(skew_s: float, drift: float) -> None:
    builder, state, replica = SnapshotBuilder(), PolicyState(), Replica(skew_s, drift)
    for turn in range(100):  # ten decisions a second, for ten seconds
        at = 0.1 * turn
        report = said(steps=50.0, step_s=0.02, step_batch=4.0, finished_requests_total=float(int(at)))
        series = raw((A, report, replica.stamp(at)))[A]
        ctx = Context({name: {A: each} for name, each in series.items()})
        snapshot = builder.build("Engine-a", ctx, None, Inbox(), NOW + at)
        _, state = observe(snapshot, state, NOW + at)

    # The first may be refused, where the clock is so far behind that it looks stale.
    assert state.service.steps == pytest.approx(500.0 if skew_s >= -STALE_AFTER_S else 450.0, rel=0.03)
    assert state.sums.finished == pytest.approx(9.0 if skew_s >= -STALE_AFTER_S else 8.0, rel=0.01)


class Context:
    """Ray's context of a deployment with one running replica."""

    def __init__(self, raw_metrics: dict[str, dict[ReplicaID, list[Any]]]) -> None:
        self.raw_metrics = raw_metrics
        self.running_replicas = [A]
        self.target_num_replicas = self.current_num_replicas = 1


def test_after_restart_a_reports_age_follows_its_stamp() -> None:
    seen = Seen()

    assert seen.ages("reports", {"dead": NOW - 25.0, "alive": NOW - 0.5}, NOW) == {"dead": 25.0, "alive": 0.5}
    later = seen.ages("reports", {"dead": NOW - 25.0, "alive": NOW + 0.5}, NOW + 1)
    assert later == {"dead": 26.0, "alive": 0.0}


def test_a_source_that_was_gone_counts_as_new() -> None:
    seen = Seen()
    seen.ages("reports", {"r": NOW}, NOW)
    seen.ages("reports", {}, NOW + 5)

    assert seen.ages("reports", {"r": NOW}, NOW + 12) == {"r": 12.0}


@given(steps=st.lists(st.floats(-3600.0, 3600.0), max_size=20))
def test_no_step_of_the_own_clock_makes_a_report_younger(steps: list[float]) -> None:
    seen, now, last = Seen(), NOW, 0.0
    for step in steps:
        now += step
        age = seen.ages("reports", {"r": NOW}, now)["r"] if now != NOW else last
        assert age >= last - 1e-6 or last == 0.0
        last = age


@pytest.mark.parametrize(
    ("no_room", "reason"), [("", "the last start failed in imports: OSError: x"), ("full", "full")]
)
def test_pending_replica_has_the_reason_of_the_last_failed_start(no_room: str, reason: str) -> None:
    builder, ctx = SnapshotBuilder(), Context({})
    ctx.target_num_replicas = 2
    earlier = {"phase": "failed", "since": NOW - 90, "during": "process", "reason": "OSError: y"}
    failed = {"phase": "failed", "since": NOW - 5, "during": "imports", "reason": "OSError: x"}
    inbox = Inbox(deployments={"Engine-a": Deployment({"r1": failed, "r0": earlier}, no_room=no_room)})
    builder.build("Engine-a", ctx, None, inbox, NOW)

    snapshot = builder.build("Engine-a", ctx, None, inbox, NOW + 60)

    assert (snapshot.pending, snapshot.pending_reason) == (1, reason)
