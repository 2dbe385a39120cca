import math
from collections.abc import Callable

import pytest

from benchmarks.soak import Sample, judge, slope


def samples(memory: Callable[[float], float]) -> dict[int, list[Sample]]:
    """A process that is read every minute of two hours, with 100 requests a minute."""
    return {7: [Sample("ingress", 60.0 * m, 100 * m, memory(100 * m), 30 + m // 60, 12) for m in range(120)]}


def test_a_line_has_its_slope_and_hardly_an_error() -> None:
    gradient, error = slope([0, 1, 2, 3, 4], [1, 3, 5, 7, 9])

    assert gradient == pytest.approx(2.0)
    assert error < 1e-9


def test_few_points_prove_nothing() -> None:
    assert slope([1, 2, 3], [1, 2, 3]) == (0.0, math.inf)


def test_a_process_that_grows_by_two_mib_for_1000_requests_fails() -> None:
    text, passed = judge(samples(lambda requests: 150 + 2 * requests / 1000), from_s=1800.0)

    assert not passed
    assert "| ingress 7 | 156.0 to 173.8 |" in text
    assert "+2.00 ± 0.00" in text
    assert "30 to 31" in text
    assert "GROWS" in text


def test_growth_of_the_first_quarter_does_not_count() -> None:
    _, passed = judge(samples(lambda requests: 150 + 2 * min(requests, 3000) / 1000), from_s=1800.0)

    assert passed


def test_a_young_process_may_fill_its_caches() -> None:
    late = [
        each for each in samples(lambda requests: 150 + min(requests, 7000) / 100)[7] if each.at_s >= 3600
    ]
    text, passed = judge({7: late, 8: late[:15]}, from_s=1800.0)

    assert passed
    assert "ingress 7" in text
    assert "ingress 8" not in text


def test_noise_is_no_growth() -> None:
    _, passed = judge(samples(lambda requests: 150 + 40 * math.sin(requests)), from_s=1800.0)

    assert passed
