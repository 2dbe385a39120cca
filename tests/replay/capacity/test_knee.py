import heapq
import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.record import Outcome, Record, Timekeeping
from replay.capacity.knee import Miss, Rate, Targets, duration_s, judge, knee, next_rps, targets
from replay.capacity.knee_text import knee_report
from replay.capacity.measure import Limits
from replay.capacity.open_loop import arrivals, fitting, summary
from replay.profile import Knee
from serve_app.policy.capacity_model import Mix, StepTime
from serve_app.settings.knobs import Knobs

TARGETS = Targets(95, 0.2, 0.025)
IN_TIME = Timekeeping(1.0, 2.0, 1.0, 2.0, 0.2)
LATE = Timekeeping(30.0, 80.0, 1.0, 2.0, 0.9)


def request(
    at_s: float,
    ttft_s: float | None = 0.05,
    itl_s: float = 0.01,
    tokens: int = 4,
    outcome: Outcome = "answered",
) -> Record:
    """One whole answer, unless it says otherwise."""
    first_s = at_s + (ttft_s or 0.0)
    pieces = () if ttft_s is None else tuple(first_s + itl_s * number for number in range(tokens))
    ended_s = pieces[-1] if pieces else at_s + 1.0
    return Record(0, "k", "m", at_s, at_s, ended_s, outcome, 200, pieces_s=pieces)


def load(rps: float = 10.0, for_s: float = 20.0, **each: float) -> list[Record]:
    return [request(number / rps, **each) for number in range(round(rps * for_s))]  # type: ignore[arg-type]


def test_rate_within_its_targets_passes() -> None:
    rate = judge(10.0, 20.0, load(), IN_TIME, TARGETS)

    assert rate.passed
    assert (rate.rps, rate.requests) == (10.0, 150)
    assert rate.ttft_s == pytest.approx(0.05)
    assert rate.itl_s == pytest.approx(0.01)
    assert rate.attained == 1.0


def test_one_unanswered_request_in_ten_fails_p95() -> None:
    records = [
        request(record.at_s, ttft_s=None, outcome="rejected") if number % 10 == 0 else record
        for number, record in enumerate(load())
    ]

    rate = judge(10.0, 20.0, records, IN_TIME, TARGETS)

    assert (rate.miss, rate.ttft_s) == ("TTFT", math.inf)
    assert rate.attained == pytest.approx(0.9)


def test_each_target_is_missed_by_its_own_name() -> None:
    assert judge(10.0, 20.0, load(ttft_s=0.25), IN_TIME, TARGETS).miss == "TTFT"
    assert judge(10.0, 20.0, load(itl_s=0.03), IN_TIME, TARGETS).miss == "ITL"
    assert judge(10.0, 20.0, load(itl_s=0.03), IN_TIME, replace(TARGETS, itl_s=None)).passed


def test_a_queue_that_grows_is_missed_however_wide_the_targets() -> None:
    # Half as many are answered as come.
    growing = [request(number / 10.0, ttft_s=number / 10.0) for number in range(200)]

    assert judge(10.0, 20.0, growing, IN_TIME, WIDE).miss == "queue"
    assert judge(10.0, 20.0, load(ttft_s=5.0), IN_TIME, WIDE).passed


def served_by(slots: int, rps: float, service_s: float, seed: int, for_s: float = 13.9) -> list[Record]:
    """Requests at random times, of which so many are served at once, first come first served."""
    draw = random.Random(seed)
    free_s = [0.0] * slots
    records = []
    for at_s in sorted(draw.uniform(0.0, for_s) for _ in range(round(rps * for_s))):
        begin_s = max(at_s, heapq.heappop(free_s))
        heapq.heappush(free_s, begin_s + service_s)
        records.append(Record(0, "k", "m", at_s, at_s, begin_s + service_s, "answered", pieces_s=(begin_s,)))
    return records


WIDE = Targets(95, 60.0, 1.0)


def test_random_arrivals_rarely_look_like_a_queue() -> None:
    grown = [judge(9.2, 13.9, served_by(1000, 9.2, 1.3, seed), IN_TIME, WIDE).miss for seed in range(300)]

    assert grown.count("queue") <= 3


def test_overload_is_a_growing_queue_with_any_targets() -> None:
    # 12 slots of 1.3 s serve 9.2 a second.
    grown = [judge(13.8, 13.9, served_by(12, 13.8, 1.3, seed), IN_TIME, WIDE).miss for seed in range(100)]

    assert grown.count("queue") >= 95


def test_late_client_fails_a_rate() -> None:
    rate = judge(10.0, 20.0, load(), LATE, TARGETS)

    assert (rate.miss, rate.lag_s) == ("client", 0.03)
    assert judge(10.0, 20.0, load(), LATE, Targets(95, 0.5, 0.025)).passed  # 30 of 500 ms


def test_tokens_after_the_last_arrival_do_not_count() -> None:
    slow_to_the_end = [request(record.at_s, itl_s=0.02) for record in load()]
    slow_to_the_end[-1] = request(19.9, itl_s=9.0, tokens=100)

    assert judge(10.0, 20.0, slow_to_the_end, IN_TIME, TARGETS).itl_s == pytest.approx(0.02)


def test_a_rate_is_kept_for_a_hundred_requests_within_reason() -> None:
    assert duration_s(9.0, 20.0) == 20.0
    assert duration_s(2.0, 20.0) == pytest.approx(66.7, abs=0.1)
    assert duration_s(0.01, 20.0) == 300.0


def test_a_target_that_an_empty_replica_misses_is_left_out() -> None:
    step = StepTime(0.03, 0.0, 0.0, 1e-5)

    assert targets(step, Mix(), Knobs()) == Targets(95, 0.2, None)
    assert targets(step, Mix(), Knobs(itl_target_s=0.05)) == Targets(95, 0.2, 0.05)
    assert targets(step, Mix(prompt_tokens=1e6), Knobs(itl_target_s=0.05)) == Targets(95, None, 0.05)


def came_to(rps: float, miss: str = "") -> Rate:
    return Rate(rps, 100, 0.1, 0.01, 1.0, miss, 0.001)  # type: ignore[arg-type]


def search(first_rps: float, true_rps: float) -> list[Rate]:
    """All tries against a replica that holds everything below `true_rps`."""
    tried: list[Rate] = []
    while (rps := next_rps(tried, first_rps)) is not None:
        tried.append(came_to(rps, "" if rps <= true_rps else "TTFT"))
    return tried


def test_a_search_goes_up_by_a_quarter_and_then_between() -> None:
    tried = search(4.0, 7.0)

    assert [round(rate.rps, 2) for rate in tried] == [4.0, 5.0, 6.25, 7.81, 6.99, 7.39, 7.19]
    found = knee(tried)
    assert found is not None
    assert found.rps == pytest.approx(6.99, abs=0.01)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.1, 100), st.floats(0.05, 20))
def test_the_knee_is_found_to_five_percent_in_few_tries(first_rps: float, ratio: float) -> None:
    tried = search(first_rps, first_rps * ratio)
    found = knee(tried)

    assert len(tried) <= 20
    assert found is not None
    assert found.rps <= first_rps * ratio < found.rps * 1.0501


def test_search_ends_without_a_pass_or_a_failure() -> None:
    assert knee(search(4.0, 0.001)) is None
    assert len(search(4.0, 0.001)) == 6
    assert len(search(4.0, math.inf)) == 15


def test_growing_queue_is_tried_again_for_longer() -> None:
    first = [came_to(4.0), came_to(5.0, "queue")]

    assert next_rps(first, 4.0) == 5.0
    assert duration_s(5.0, 20.0, again=True) == 2 * duration_s(5.0, 20.0)
    assert next_rps([*first, came_to(5.0)], 4.0) == 6.25
    between = next_rps([*first, came_to(5.0, "queue")], 4.0)
    assert between is not None
    assert 4.0 < between < 5.0


LIMITS = Limits(max_model_len=2048, kv_cache_tokens=131_072, max_num_seqs=64, max_num_batched_tokens=2048)
TTFT_ONLY = Targets(95, 0.5, None)


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


def rate_of(rps: float, ttft_s: float, miss: Miss = "") -> Rate:
    return Rate(rps, 100, ttft_s, 0.01, 0.5 if miss else 1.0, miss, 0.001)


def summed(*tried: Rate) -> Knee:
    return summary(list(tried), 9.2199, TTFT_ONLY, (512, 128))


def test_knee_has_the_highest_rate_and_its_bound() -> None:
    found = summed(rate_of(4.0, 0.1), rate_of(5.0, math.inf, "TTFT"), rate_of(4.472136, 0.2))

    assert (found.rps, found.bound, found.ttft_s) == (4.472, "TTFT", 0.2)
    assert (found.ttft_target_s, found.itl_target_s, found.percentile) == (0.5, None, 95)
    assert found.formula_rps == 9.22
    assert found.curve == ((4.0, 0.1, 0.01, 1.0), (4.472, 0.2, 0.01, 1.0), (5.0, None, 0.01, 0.5))


def test_knee_is_zero_if_no_rate_passed() -> None:
    none = summed(rate_of(4.0, 0.9, "TTFT"), rate_of(2.0, 0.8, "queue"))
    assert (none.rps, none.bound, none.ttft_s) == (0.0, "queue", 0.8)

    assert summed(rate_of(4.0, 0.1)).bound == "none"


BOTH = Targets(95, 0.5, 0.1)
RATES = (
    Rate(4.61, 92, 0.061, 0.021, 1.0, "", 0.001),
    Rate(9.43, 141, 0.41, 0.09, 0.95, "", 0.001),
    Rate(10.1, 150, math.inf, 0.11, 0.83, "TTFT", 0.002),
)


def knee_of(*rates: Rate, formula_rps: float = 9.22, targets: Targets = BOTH) -> Knee:
    return summary(list(rates), formula_rps, targets, (512, 128))


def told(*rates: Rate, formula_rps: float = 9.22, targets: Targets = BOTH) -> str:
    return knee_report(knee_of(*rates, formula_rps=formula_rps, targets=targets), rates)


def test_each_rate_is_a_line_and_the_knee_is_marked() -> None:
    lines = told(*RATES).splitlines()

    assert lines[0] == (
        "Open loop: Poisson arrivals of 512 + 128 tokens, with P95 TTFT within 500 ms and ITL within 100 ms"
    )
    assert [line[0] for line in lines[2:5]] == [" ", ">", " "]
    assert lines[2].split() == ["4.61", "92", "61", "ms", "█▍", "21", "ms", "██▌", "100", "%"]
    assert "never ████████████>" in lines[4]
    assert lines[4].endswith("TTFT")
    assert max(map(len, lines)) <= 100


def test_the_formula_is_compared_in_words() -> None:
    assert "carries 9.43 requests/s, measured; the formula says 9.22, the same to 5 %" in told(*RATES)
    assert "the formula says 12, 27% too many" in told(*RATES, formula_rps=12.0)
    assert "the formula says 6, 36% too few" in told(*RATES, formula_rps=6.0)


def test_report_says_why_the_next_rate_failed() -> None:
    late = Rate(10.1, 150, 0.3, 0.05, 1.0, "client", 0.08)

    assert "Above it TTFT is missed first" in told(*RATES)
    assert "No rate was missed; the knee lies higher" in told(*RATES[:2])
    assert "client, 80 ms late" in told(*RATES[:2], late)
    assert "it bounds the knee, not the replica" in told(*RATES[:2], late)
    assert (
        "No rate met the targets, down to 10.1 requests/s, and the formula says 9.22; the lowest missed "
        in (told(RATES[2]))
    )


def test_left_out_target_has_no_bar() -> None:
    text = told(*RATES, targets=Targets(95, 0.5, None))

    assert "with P95 TTFT within 500 ms (ITL left out: an empty replica misses its target)" in text
    assert "█▌" not in text.splitlines()[2]
