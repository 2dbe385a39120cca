"""Numbers drawn from the distributions of a scenario."""

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from loadtests.kinds import Length, Think, Turns
from loadtests.plan import draw_pause_s, draw_whole


def drawn(distribution: Any, given: Any, draw: Any, count: int = 20_000) -> Any:
    parsed = TypeAdapter(distribution).validate_python(given)
    rng = np.random.default_rng(1)
    return np.array([draw(parsed, rng) for _ in range(count)])


def test_a_number_is_itself() -> None:
    assert set(drawn(Length, 7, draw_whole, 9)) == {7}
    assert set(drawn(Think, 0.5, draw_pause_s, 9)) == {0.5}
    assert set(drawn(Turns, 3, draw_whole, 9)) == {3}


def test_a_range_is_even_with_both_ends() -> None:
    pauses = drawn(Think, {"least": 2, "most": 4}, draw_pause_s)

    assert set(drawn(Turns, {"least": 2, "most": 4}, draw_whole)) == {2, 3, 4}
    assert set(drawn(Length, {"least": 2, "most": 4}, draw_whole)) == {2, 3, 4}
    assert pauses.mean() == pytest.approx(3.0, abs=0.02)
    assert (pauses.min() >= 2, pauses.max() <= 4) == (True, True)


def test_a_spread_has_its_median_and_is_cut() -> None:
    given = {"median": 10, "sigma": 1.0, "least": 2, "most": 60}
    pauses, lengths = drawn(Think, given, draw_pause_s), drawn(Length, given, draw_whole)

    assert np.median(pauses) == pytest.approx(10, rel=0.03)
    assert np.median(lengths) == pytest.approx(10, abs=1)
    assert (pauses.min(), pauses.max(), lengths.min(), lengths.max()) == (2, 60, 2, 60)


def test_turns_end_with_the_same_chance_after_each_and_are_cut() -> None:
    counts = drawn(Turns, {"mean": 3.5, "most": 12}, draw_whole)

    for turn in (1, 2, 3):
        assert np.mean(counts[counts >= turn] == turn) == pytest.approx(1 / 3.5, abs=0.02)
    assert counts.max() == 12
