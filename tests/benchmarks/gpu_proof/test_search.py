import pytest

from benchmarks.gpu_proof.search import largest_rate


@pytest.mark.parametrize(
    ("bound", "tried", "found"),
    [
        (10.0, [8.0, 16.0, 11.31, 9.51, 10.37], 9.51),
        (3.0, [8.0, 4.0, 2.0, 2.83, 3.364], 2.83),
        (0.1, [8.0, 4.0, 2.0, 1.0, 0.5], None),
        (1e9, [8.0, 16.0, 32.0, 64.0, 128.0], 128.0),
    ],
)
def test_the_search_closes_in_from_both_sides(bound: float, tried: list[float], found: float | None) -> None:
    seen: list[float] = []

    def holds(rate: float) -> bool:
        seen.append(rate)
        return rate <= bound

    assert largest_rate(holds, 8.0, tries=5) == (None if found is None else pytest.approx(found, rel=1e-3))
    assert seen == pytest.approx(tried, rel=1e-3)
