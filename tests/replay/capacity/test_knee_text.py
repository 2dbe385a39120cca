import math

from replay.capacity.knee import Rate, Targets
from replay.capacity.knee_text import knee_report
from replay.capacity.open_loop import summary
from replay.profile import Knee

TARGETS = Targets(95, 0.5, 0.1)
RATES = (
    Rate(4.61, 92, 0.061, 0.021, 1.0, "", 0.001),
    Rate(9.43, 141, 0.41, 0.09, 0.95, "", 0.001),
    Rate(10.1, 150, math.inf, 0.11, 0.83, "TTFT", 0.002),
)


def knee(*rates: Rate, formula_rps: float = 9.22, targets: Targets = TARGETS) -> Knee:
    return summary(list(rates), formula_rps, targets, (512, 128))


def told(*rates: Rate, formula_rps: float = 9.22, targets: Targets = TARGETS) -> str:
    return knee_report(knee(*rates, formula_rps=formula_rps, targets=targets), rates)


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
