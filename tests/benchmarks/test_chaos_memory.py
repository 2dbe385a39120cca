"""Memory by role over a run: flat, growing, or not judged."""

import pytest

from benchmarks.chaos.memory import growth, memory_table
from benchmarks.chaos.observed import Memory

MIB = 1 << 20


def samples(minutes: float, grows_mib: float, role: str = "controller", processes: int = 1) -> list[Memory]:
    count = 100
    return [
        Memory(
            minutes * 60 * n / (count - 1),
            {role: round((150 + grows_mib * n / (count - 1)) * MIB) * processes},
            {role: processes},
        )
        for n in range(count)
    ]


@pytest.mark.parametrize(("grows_mib", "flat"), [(0, True), (10, True), (40, False)])
def test_an_hour_shows_whether_memory_is_flat(grows_mib: float, flat: bool) -> None:
    (found,) = growth(samples(60, grows_mib))
    assert found.flat is flat
    assert f"| {'PASS' if flat else 'MISS'}" in memory_table([found])


def test_ten_minutes_are_shown_and_not_judged() -> None:
    (found,) = growth(samples(10, 400))
    assert found.flat is None
    assert "not judged" in memory_table([found])


def test_a_second_process_of_a_role_is_no_growth() -> None:
    one, two = samples(30, 0), samples(30, 0, processes=2)
    joined = one + [Memory(1800 + sample.at_s, sample.bytes_by_role, sample.count_by_role) for sample in two]
    (found,) = growth(joined)
    assert found.first == found.last
    assert found.flat is True


def test_a_role_without_a_process_at_the_end_is_left_out() -> None:
    gone = [*samples(60, 0), *(Memory(3600.0 + n, {}, {}) for n in range(20))]
    assert growth(gone) == []
