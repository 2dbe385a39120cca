import math
import random
from itertools import pairwise

import pytest

from replay.capacity.knee import Miss, Rate, Targets
from replay.capacity.measure import Limits
from replay.capacity.open_loop import arrivals, fitting, summary
from replay.profile import Knee

LIMITS = Limits(max_model_len=2048, kv_cache_tokens=131_072, max_num_seqs=64, max_num_batched_tokens=2048)
TARGETS = Targets(95, 0.5, None)


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ((512, 128), (512, 128)),
        ((1920, 128), (1920, 128)),
        ((4000, 128), (1920, 128)),
        ((4000, 4000), (1536, 512)),
        ((16, 4000), (16, 512)),
    ],
)
def test_requests_are_cut_to_the_context(asked: tuple[int, int], got: tuple[int, int]) -> None:
    assert fitting(*asked, LIMITS) == got


def test_arrivals_are_random_with_a_fixed_number() -> None:
    planned = arrivals(10.0, 20.0, random.Random(1), 7, 512, 128)

    times = [request.at_s for request in planned]
    assert len(planned) == 200
    assert times == sorted(times)
    assert 0.0 <= times[0] <= times[-1] <= 20.0
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # Of an exponential law, 63 % are below the mean; evenly spaced, none would be.
    assert sum(gap < 0.1 for gap in gaps) / len(gaps) == pytest.approx(0.63, abs=0.08)
    assert [request.index for request in planned] == list(range(7, 207))
    assert {(r.prompt_tokens, r.output_tokens, r.api) for r in planned} == {(512, 128, "completions")}


def came_to(rps: float, ttft_s: float, miss: Miss = "") -> Rate:
    return Rate(rps, 100, ttft_s, 0.01, 0.5 if miss else 1.0, miss, 0.001)


def summed(*tried: Rate) -> Knee:
    return summary(list(tried), 9.2199, TARGETS, (512, 128))


def test_knee_has_the_highest_rate_and_its_bound() -> None:
    found = summed(came_to(4.0, 0.1), came_to(5.0, math.inf, "TTFT"), came_to(4.472136, 0.2))

    assert (found.rps, found.bound, found.ttft_s) == (4.472, "TTFT", 0.2)
    assert (found.ttft_target_s, found.itl_target_s, found.percentile) == (0.5, None, 95)
    assert found.formula_rps == 9.22
    assert found.curve == ((4.0, 0.1, 0.01, 1.0), (4.472, 0.2, 0.01, 1.0), (5.0, None, 0.01, 0.5))


def test_knee_is_zero_if_no_rate_passed() -> None:
    none = summed(came_to(4.0, 0.9, "TTFT"), came_to(2.0, 0.8, "queue"))
    assert (none.rps, none.bound, none.ttft_s) == (0.0, "queue", 0.8)

    assert summed(came_to(4.0, 0.1)).bound == "none"
