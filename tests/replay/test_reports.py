"""Reports that come late or not at all, and what the production policy is shown of them."""

import pytest

from replay.production import EPOCH, Production
from replay.reports import Mail, Reporting
from serve_app.controller.contexts import Sightings, engine_readings, ingress_readings
from serve_app.settings.knobs import Knobs
from tests.replay.fleet.build import fleet, serve

KNOBS = Knobs(min_replicas=0, max_replicas=6)


def engine_ages(controller: Production, now: float) -> dict[str, float]:
    """The age in seconds of the newest report of each replica that the policy sees."""
    readings = engine_readings(controller._columns, EPOCH + now, Sightings())
    return {replica: round(reading.age_s, 3) for replica, reading in readings.items()}


def test_a_report_arrives_after_a_time_drawn_for_each() -> None:
    mail: Mail[str] = Mail(Reporting(late_s=(1.0, 5.0)))
    for number in range(200):
        mail.send(f"r{number}", 10.0, [0.0])

    assert mail.take_arrived(10.99) == []
    early, late = len(mail.take_arrived(12.0)), len(mail.take_arrived(15.0))
    assert early + late == 200
    assert early == pytest.approx(50, abs=20)


def test_a_report_that_a_newer_one_has_overtaken_is_dropped() -> None:
    mail: Mail[str] = Mail(Reporting(late_s=(1.0, 5.0)))
    seen = []
    for now in range(300):
        mail.send("r1", float(now), [now])
        seen += [report.measured_at for report in mail.take_arrived(float(now))]

    assert seen == sorted(seen)
    assert 100 < len(seen) < 290


def test_reports_on_time_arrive_at_once() -> None:
    mail: Mail[str] = Mail(Reporting())
    mail.send("r1", 3.0, [7.0])

    (report,) = mail.take_arrived(3.0)
    assert (report.source, report.measured_at, report.values) == ("r1", 3.0, [7.0])
    assert mail.take_arrived(3.0) == []


@pytest.mark.parametrize("wrong", [{"late_s": (5.0, 1.0)}, {"mute_s": (-1.0, 60.0)}])
def test_times_that_cannot_be_are_refused(wrong: dict[str, tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match=r"must be \(first, last\), from 0"):
        Reporting(**wrong)  # type: ignore[arg-type]


def test_policy_sees_the_age_of_late_reports() -> None:
    made = fleet(2)
    controller = Production(KNOBS, reporting=Reporting(late_s=(1.0, 5.0)))
    for number in range(1, 41):
        serve(made, (0.5 * number - 0.1, 100, 5), until=0.5 * number)
        controller.step(made)
        if number == 1:
            assert engine_ages(controller, made.now) == {}
            assert ingress_readings(controller._ingress, "Engine-model", EPOCH + made.now, Sightings()) == {}

    ages = engine_ages(controller, made.now)
    assert set(ages) == {"r1", "r2"}
    assert all(1.0 <= age <= 5.0 for age in ages.values())
    (gateway,) = ingress_readings(controller._ingress, "Engine-model", EPOCH + made.now, Sightings()).values()
    assert 1.0 <= gateway.age_s <= 5.0
    # It counted what had arrived when it was measured.
    assert gateway.signals.arrivals_total == pytest.approx((made.now - gateway.age_s) / 0.5)


def test_oldest_replica_is_mute_for_a_time() -> None:
    made = fleet(2)
    controller = Production(KNOBS, reporting=Reporting(mute_s=(10.0, 70.0)))
    ages = {}
    for number in range(160):
        made.advance(0.5 * number)
        controller.step(made)
        ages[made.now] = engine_ages(controller, made.now)

    assert all(age <= 0.5 for age in ages[9.5].values())
    assert ages[69.5]["r1"] == pytest.approx(60.0, abs=0.5)
    assert ages[69.5]["r2"] <= 0.5
    assert all(age <= 0.5 for age in ages[71.0].values())


def test_next_oldest_replica_is_mute_after_the_first() -> None:
    mail: Mail[str] = Mail(Reporting(mute_s=(10.0, float("inf"))))

    assert [mail.mute([3, 2], at) for at in (9.0, 10.0)] == [None, 2]
    assert mail.mute([1, 2, 3], 20.0) == 2
    assert (mail.mute([], 30.0), mail.mute([4, 5], 40.0)) == (None, 4)
