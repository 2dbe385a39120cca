import pytest

from replay.capacity.observer import TrafficGuard, check_alone
from replay.capacity.server import MeasurementError, Readiness, Scrape, read_scrape
from serve_app.settings.knobs import Knobs
from tests.replay.capacity.fake_application import exposition


def scrape(steps: float = 0.0, arrivals: float = 0.0, replica: str = "a", busy: float = 0.0) -> Scrape:
    text = exposition("tide", replica, llm_steps_total=steps, llm_step_seconds_total=steps / 100)
    text += exposition("tide", replica, llm_running_requests=busy)
    return read_scrape(text + exposition("tide", "i", llm_arrivals_total=arrivals), "tide")


def seen(replicas: int, target: int, **more: str) -> Readiness:
    return Readiness(state="up", replicas=replicas, target_replicas=target, **more)


@pytest.mark.parametrize("knobs", [Knobs(), Knobs(min_replicas=0), Knobs(max_replicas=5, mode="advise")])
def test_one_replica_that_stays_alone_may_be_measured(knobs: Knobs) -> None:
    check_alone("tide", seen(1, 1), knobs)


@pytest.mark.parametrize(
    ("replicas", "target", "told"),
    [
        (0, 0, "tide has 0 ready replicas and 0 running or on their way"),
        (0, 1, "tide has 0 ready replicas and 1 running or on their way"),
        (1, 2, "tide has 1 ready replicas and 2 running or on their way"),
        (2, 2, "tide has 2 ready replicas"),
    ],
)
def test_any_other_number_is_refused_and_the_message_pins_one(replicas: int, target: int, told: str) -> None:
    with pytest.raises(MeasurementError) as caught:
        check_alone("tide", seen(replicas, target), Knobs())

    assert str(caught.value).startswith(told)
    assert "tideserve knobs set tide min_replicas=1 max_replicas=1" in str(caught.value)


def test_a_replica_that_cannot_start_says_why() -> None:
    with pytest.raises(MeasurementError, match=r"pending_capacity \(no free GPU\)"):
        check_alone("tide", seen(0, 1, phase="pending_capacity", reason="no free GPU"), Knobs())


def test_scrapes_become_samples() -> None:
    guard = TrafficGuard("tide", scrape(steps=50, arrivals=10))

    assert guard.add(scrape(steps=50, arrivals=10), sent=1) is None
    sample = guard.add(scrape(steps=150, arrivals=11), sent=3)

    assert sample is not None
    assert sample.step_s == pytest.approx(0.01)
