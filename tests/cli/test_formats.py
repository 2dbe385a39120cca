import math

import pytest

from serve_app.cli import formats


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0162, "16.2 ms"),
        (0.2, "200 ms"),
        (1, "1 s"),
        (-0.0162, "-16.2 ms"),
        (72.4, "72.4 s"),
        (180, "180 s"),
        (600, "10 min"),
        (10800, "3 h"),
    ],
)
def test_duration_has_a_suitable_unit(value: float, shown: str) -> None:
    assert formats.seconds(value) == shown


def test_a_share_is_100_percent_only_if_nothing_is_missing() -> None:
    assert formats.percent(0.99996) == "99.99 %"
    assert formats.percent(1.0) == "100 %"
    assert formats.percent(0.98649) == "98.6 %"


def test_what_is_not_finite_is_a_dash() -> None:
    assert formats.seconds(math.nan) == formats.percent(math.inf) == formats.whole(math.nan) == "-"


def test_a_name_from_outside_stays_on_its_line() -> None:
    assert formats.plain("a\x1b[31m\nb") == "a�[31m�b"
    assert formats.plain("x" * 100, longest=5) == "xxxx…"
