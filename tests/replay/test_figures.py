"""From counts to figures."""

import numpy as np
import pytest

from replay.figures import percentiles, windows_of
from replay.fleet import layout
from tests.replay.fleet.build import fleet


def test_percentiles_are_true_to_a_hundredth() -> None:
    draw = np.random.default_rng(0)
    values = np.exp(draw.normal(-3.0, 1.5, 20_000))
    places = (np.log(values / layout.SHORTEST_S) / np.log(layout.RATIO)).astype(int)
    found = percentiles(np.bincount(places, minlength=layout.BINS).astype(float))

    assert found.count == 20_000
    assert found.mean_s == pytest.approx(values.mean(), rel=0.01)
    assert found.at_s == pytest.approx(np.percentile(values, [50, 90, 95, 99]), rel=0.012)


def test_of_nothing_percentiles_are_zero() -> None:
    assert percentiles(np.zeros(layout.BINS)).at_s == (0.0, 0.0, 0.0, 0.0)


def test_of_one_every_percentile_is_that_one() -> None:
    histogram = np.zeros(layout.BINS)
    histogram[700] = 1.0
    assert set(percentiles(histogram).at_s) == {percentiles(histogram).mean_s}


@pytest.mark.parametrize(
    ("requests", "ok", "itl", "itl_ok", "attained"),
    [
        (20, 19, 100, 95, True),
        (20, 18, 100, 95, False),
        (20, 19, 100, 94, False),
        (0, 0, 0, 0, True),
        (0, 0, 100, 94, False),
        (1, 1, 0, 0, True),
        (1, 0, 0, 0, False),
    ],
)
def test_a_minute_is_attained_by_the_share_of_what_was_within_its_target(
    requests: int, ok: int, itl: int, itl_ok: int, attained: bool
) -> None:
    made = fleet()
    row = made.memory.windows[3]
    row["requests"], row["ttft_ok"], row["itl"], row["itl_ok"] = requests, ok, itl, itl_ok
    windows, warm = windows_of(made, 95.0, 200.0)

    assert (len(windows.attained), len(warm)) == (4, 4)
    assert windows.attained[3] == warm[3] == attained
    assert windows.attained[:3].tolist() == [1, 1, 1]


def test_without_the_cold_a_minute_is_judged_by_the_rest() -> None:
    made = fleet()
    row = made.memory.windows[0]
    # Of 30, ten were held, one of them answered in time; of the others all.
    row["requests"], row["ttft_ok"], row["cold"], row["cold_ok"] = 30, 21, 10, 1
    windows, warm = windows_of(made, 95.0, 59.0)

    assert (windows.attained.tolist(), warm.tolist()) == ([0], [1])


def test_the_minute_of_the_last_arrival_is_the_last() -> None:
    made = fleet()
    assert [len(windows_of(made, 95.0, end)[1]) for end in (0.0, 59.9, 60.0, 61.0)] == [1, 1, 2, 2]
