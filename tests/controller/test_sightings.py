import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.controller.contexts import SnapshotBuilder
from serve_app.controller.mailbox import Inbox
from serve_app.controller.sightings import Sightings
from serve_app.learning.observe import observe
from serve_app.learning.state import PolicyState
from serve_app.wire.signals import STALE_AFTER_S, Reading
from tests.controller.test_contexts import A, raw, said
from tests.policy.build import NOW

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
def test_a_live_replica_is_fresh_whatever_its_clock_says(skew_s: float, drift: float) -> None:
    seen, replica = Sightings(), Replica(skew_s, drift)
    ages = [seen.ages({"r": replica.stamp(at)}, NOW + at)["r"] for at in map(float, range(120))]

    assert all(0.0 <= age <= 1.0 for age in ages[1:])


@given(skew_s=skews, drift=drifts)
def test_dead_replica_is_stale_after_ten_seconds(skew_s: float, drift: float) -> None:
    seen, replica = Sightings(), Replica(skew_s, drift, dies_at=20.0)
    calls = [CALL_S * turn for turn in range(120)]
    ages = [seen.ages({"r": replica.stamp(at)}, NOW + at)["r"] for at in calls]

    fresh = [at for at, age in zip(calls, ages, strict=True) if at >= 1.0 and age <= STALE_AFTER_S]
    assert fresh == [at for at in calls if 1.0 <= at <= 20.0 + STALE_AFTER_S]


@given(skew_s=skews, drift=drifts)
def test_each_report_counts_once(skew_s: float, drift: float) -> None:
    builder, state, replica = SnapshotBuilder(), PolicyState(), Replica(skew_s, drift)
    for turn in range(100):  # ten decisions a second, for ten seconds
        at = 0.1 * turn
        report = said(steps=50.0, step_s=0.02, step_batch=4.0, finished_requests_total=float(int(at)))
        ctx = Context(raw((A, report, replica.stamp(at))))
        snapshot = builder.build("Engine-a", ctx, None, Inbox(), NOW + at)
        _, state = observe(snapshot, state, NOW + at)

    # The first may be refused, where the clock is so far behind that it looks stale.
    assert state.service.steps == pytest.approx(500.0 if skew_s >= -STALE_AFTER_S else 450.0, rel=0.03)
    assert state.sums.finished == pytest.approx(9.0 if skew_s >= -STALE_AFTER_S else 8.0, rel=0.01)


class Context:
    """Ray's context of a deployment with one running replica."""

    def __init__(self, raw_metrics: dict[str, dict[object, list[object]]]) -> None:
        self.raw_metrics = raw_metrics
        self.running_replicas = [A]
        self.target_num_replicas = self.current_num_replicas = 1


def test_after_restart_a_reports_age_follows_its_stamp() -> None:
    seen = Sightings()

    assert seen.ages({"dead": NOW - 25.0, "alive": NOW - 0.5}, NOW) == {"dead": 25.0, "alive": 0.5}
    assert seen.ages({"dead": NOW - 25.0, "alive": NOW + 0.5}, NOW + 1) == {"dead": 26.0, "alive": 0.0}


def test_first_reports_that_are_not_believed_are_new() -> None:
    assert Sightings(believed=False).ages({"behind": NOW - 90.0}, NOW) == {"behind": 0.0}


def test_a_source_that_was_gone_counts_as_new() -> None:
    seen = Sightings()
    seen.ages({"r": NOW}, NOW)
    seen.ages({}, NOW + 5)

    assert seen.ages({"r": NOW}, NOW + 12) == {"r": 12.0}


@given(steps=st.lists(st.floats(-3600.0, 3600.0), max_size=20))
def test_no_step_of_the_own_clock_makes_a_report_younger(steps: list[float]) -> None:
    seen, now, last = Sightings(), NOW, 0.0
    for step in steps:
        now += step
        age = seen.ages({"r": NOW}, now)["r"] if now != NOW else last
        assert age >= last - 1e-6 or last == 0.0
        last = age


def test_new_report_is_fresh_after_clock_set_back() -> None:
    seen = Sightings()
    seen.ages({"r": NOW}, NOW)

    assert Reading(None, seen.ages({"r": NOW + 1}, NOW - 3600)["r"]).fresh
