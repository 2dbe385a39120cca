from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from serve_app.settings.schedule import Schedule, scheduled_minimum


def at(text: str, zone: str = "UTC") -> float:
    """Unix time of a local moment."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


MORNING = Schedule(
    days=("mon", "tue", "wed", "thu", "fri"),
    start="08:00",
    end="18:00",
    timezone="Europe/Berlin",
    min_replicas=4,
)
NIGHT = Schedule(days=("fri",), start="22:00", end="02:00", min_replicas=2)
ALWAYS = Schedule(start="06:00", end="06:00", min_replicas=1)


@pytest.mark.parametrize(
    ("moment", "open_"),
    [
        ("2026-03-02 07:59:59", False),  # a Monday
        ("2026-03-02 08:00:00", True),
        ("2026-03-02 17:59:59", True),
        ("2026-03-02 18:00:00", False),
        ("2026-03-01 12:00:00", False),  # a Sunday
        ("2026-07-01 08:00:00", True),  # in summer time
        ("2026-07-01 07:59:00", False),
    ],
)
def test_a_window_is_open_from_its_start_to_before_its_end_in_local_time(moment: str, open_: bool) -> None:
    assert MORNING.covers(at(moment, "Europe/Berlin")) is open_


@pytest.mark.parametrize(
    ("moment", "open_"),
    [
        ("2026-03-06 21:59:00", False),  # a Friday
        ("2026-03-06 22:00:00", True),
        ("2026-03-07 01:59:00", True),  # Saturday, but the window is Friday's
        ("2026-03-07 02:00:00", False),
        ("2026-03-06 01:00:00", False),  # Thursday's night is none of it
        ("2026-03-07 22:30:00", False),
    ],
)
def test_a_window_that_runs_past_midnight_belongs_to_the_day_it_starts_on(moment: str, open_: bool) -> None:
    assert NIGHT.covers(at(moment)) is open_


@pytest.mark.parametrize("clock", ["00:00", "05:59", "06:00", "23:59"])
def test_a_start_that_is_the_end_means_all_day(clock: str) -> None:
    assert ALWAYS.covers(at(f"2026-03-02 {clock}:00"))


def test_the_clock_change_moves_a_window_by_the_hour() -> None:
    # Berlin went to summer time on 2026-03-29: 08:00 is 07:00 UTC before and 06:00 UTC after.
    assert not MORNING.covers(at("2026-03-27 06:30:00"))
    assert MORNING.covers(at("2026-03-30 06:30:00"))


def test_a_window_opens_the_lead_early_so_that_its_replicas_are_ready() -> None:
    lead_s = 75.0

    assert scheduled_minimum([MORNING], at("2026-03-02 07:58:44", "Europe/Berlin"), lead_s) == 0
    assert scheduled_minimum([MORNING], at("2026-03-02 07:58:45", "Europe/Berlin"), lead_s) == 4


def test_a_window_shorter_than_the_lead_is_not_jumped_over() -> None:
    short = Schedule(start="12:00", end="12:05", min_replicas=3)

    assert scheduled_minimum([short], at("2026-03-02 11:30:00"), 3600.0) == 3


def test_of_several_windows_the_largest_counts() -> None:
    noon = at("2026-03-02 12:00:00", "Europe/Berlin")

    assert scheduled_minimum([MORNING, ALWAYS], noon, 0.0) == 4
    assert scheduled_minimum([ALWAYS, MORNING], noon, 0.0) == 4
    assert scheduled_minimum([], noon, 60.0) == 0


def test_the_lead_is_at_most_an_hour_and_never_negative() -> None:
    day_before = at("2026-03-02 06:00:00", "Europe/Berlin")

    assert scheduled_minimum([MORNING], day_before, 86_400.0) == 0
    assert scheduled_minimum([MORNING], day_before, -5.0) == 0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"start": "24:00"}, "start"),
        ({"start": "8:00"}, "start"),
        ({"end": 1080}, "in quotes"),  # what YAML 1.1 makes of 18:00
        ({"timezone": "Mars/Olympus"}, "IANA"),
        ({"timezone": "../../etc/passwd"}, "IANA"),
        ({"min_replicas": 0}, "min_replicas"),
        ({"days": ()}, "days"),
        ({"days": ("monday",)}, "days"),
        ({"start": "06:00", "end": "06:00", "days": ("mon",)}, "means the whole day"),
    ],
)
def test_what_is_no_window_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Schedule.model_validate({"start": "08:00", "end": "18:00", "min_replicas": 1, **wrong})
