import pytest

from benchmarks.law_cells.figures import reversals


@pytest.mark.parametrize(
    ("targets", "count"),
    [
        ([], 0),
        ([(0.0, 3)], 0),
        ([(0.0, 3), (10.0, 4), (20.0, 6)], 0),
        ([(0.0, 3), (10.0, 4), (310.0, 3)], 1),
        ([(0.0, 3), (10.0, 4), (310.5, 3)], 0),
        ([(0.0, 3), (10.0, 4), (100.0, 2), (150.0, 1), (200.0, 5)], 2),
    ],
)
def test_a_change_within_five_minutes_of_one_the_other_way_is_a_reversal(
    targets: list[tuple[float, int]], count: int
) -> None:
    assert reversals(targets) == count
