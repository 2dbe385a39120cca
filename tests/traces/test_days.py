from pathlib import Path

import numpy as np
import pytest

from benchmarks.days.__main__ import main
from traces import ArrayTrace, TraceError, open_trace
from traces.chunks import joined
from traces.days import DAY_S, DaysTrace


def recording(seconds: float = 1800.0, rps: float = 8.0) -> ArrayTrace:
    draws = np.random.default_rng(3)
    count = int(seconds * rps)
    arrivals = np.sort(draws.uniform(0.0, seconds, count))
    arrivals[-1] = seconds
    return ArrayTrace("calls", arrivals, draws.integers(1, 900, count), draws.integers(1, 300, count))


def hourly(trace: DaysTrace) -> np.ndarray:
    """Requests per second in every hour."""
    arrivals = joined(list(trace.chunks())).arrival_s
    return np.bincount((arrivals // 3600).astype(np.int64)) / 3600.0


def test_a_day_has_a_night_a_morning_ramp_and_peaks() -> None:
    rates = hourly(DaysTrace(recording(), 1, 4.0))

    assert len(rates) == 24
    assert rates[3:5].max() < 0.3 * rates[10]
    assert (np.diff(rates[5:11]) > 0).all()
    assert rates[12] < min(rates[10], rates[14])


def test_its_rate_is_as_told_with_fewer_requests_than_recorded_and_with_more() -> None:
    for peak_rps in (2.0, 20.0):
        trace = DaysTrace(recording(), 1, peak_rps, seed=5)
        expected = trace.rate(np.arange(24) * 3600.0 + 1800.0)

        assert hourly(trace) == pytest.approx(expected, rel=0.15)


def test_weekdays_differ_by_some_fifteen_percent_and_a_weekend_has_half() -> None:
    noon = np.arange(70) * DAY_S + 11 * 3600.0
    rates = DaysTrace(recording(), 70, 10.0).rate(noon)
    weekday = np.arange(70) % 7 < 5

    assert np.std(np.log(rates[weekday])) == pytest.approx(0.15, abs=0.04)
    assert rates[weekday].mean() == pytest.approx(10.0, rel=0.1)
    assert rates[~weekday].mean() == pytest.approx(5.0, rel=0.15)


def test_equal_seeds_give_equal_requests_and_a_week_begins_like_its_first_day() -> None:
    day, week = (joined(list(DaysTrace(recording(), days, 1.0, seed=2).chunks())) for days in (1, 2))
    again = joined(list(DaysTrace(recording(), 1, 1.0, seed=2).chunks()))
    other = joined(list(DaysTrace(recording(), 1, 1.0, seed=3).chunks()))

    assert day.arrival_s.tolist() == again.arrival_s.tolist() == week.arrival_s[: len(day)].tolist()
    assert day.output_tokens.tolist() == week.output_tokens[: len(day)].tolist()
    assert day.arrival_s.tolist() != other.arrival_s.tolist()


def test_arrivals_never_fall_and_lengths_are_those_of_the_recording() -> None:
    source = recording()
    composed, recorded = (joined(list(trace.chunks())) for trace in (DaysTrace(source, 1, 20.0), source))

    assert (np.diff(composed.arrival_s) >= 0).all()
    assert composed.arrival_s[0] >= 0
    assert composed.arrival_s[-1] < DAY_S
    assert composed.input_tokens.mean() == pytest.approx(recorded.input_tokens.mean(), rel=0.02)


@pytest.mark.parametrize(
    ("seconds", "days", "peak_rps", "wrong"),
    [(300.0, 1, 4.0, "calls: lasts 300 s"), (900.0, 0, 4.0, "days = 0"), (900.0, 1, 0.0, "peak_rps = 0")],
)
def test_what_cannot_be_composed_is_refused(seconds: float, days: int, peak_rps: float, wrong: str) -> None:
    with pytest.raises(TraceError, match=wrong):
        DaysTrace(recording(seconds), days, peak_rps)


def test_the_command_writes_a_trace_that_can_be_read_and_is_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "calls.csv"
    rows = [f"{at},{100 + at % 7},{10 + at % 5}\n" for at in range(1200)]
    source.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(rows))
    first, second = tmp_path / "a.csv.gz", tmp_path / "b.csv.gz"
    for out in (first, second):
        assert main(["--trace", str(source), "--out", str(out), "--peak-rps", "0.5"]) == 0

    written = joined(list(open_trace(first).chunks()))
    assert first.read_bytes() == second.read_bytes()
    assert f"{len(written):,} requests" in capsys.readouterr().out
    assert 15_000 < len(written) < 35_000
