import math
from dataclasses import replace
from typing import Any

import pytest

from loadtests.record import Record, Run, Sample
from loadtests.summary import summarize
from loadtests.verdicts import Verdict, Verdicts, judge
from tests.loadtests import samples
from tests.loadtests.made_up_server import MODEL
from tests.loadtests.samples import error, record

NOTHING: dict[str, Any] = {"ttft_ms": None, "itl_ms": None, "hundred_tokens_s": None, "error_rate": None}


def judged(run: Run) -> Verdicts:
    return judge(run, summarize(run))


def of_slos(records: list[Record], **slos: Any) -> Verdicts:
    of = samples.scenario(slos=NOTHING | slos, broken_streams=None)
    return judged(samples.run(of, records))


def named(verdicts: Verdicts, name: str) -> Verdict:
    (verdict,) = (one for one in verdicts.verdicts if one.name == name)
    return verdict


def test_good_runs_pass() -> None:
    for run in (samples.steady(), samples.cold_burst(), samples.long()):
        verdicts = judged(run)

        assert (verdicts.overall, verdicts.exit_status, verdicts.invalid) == ("pass", 0, ())
        assert verdicts.words.startswith("Passed: ")


def test_a_percentile_at_its_bound_is_not_below_it() -> None:
    records = [record(pieces_s=(0.25,))]

    assert of_slos(records, ttft_ms={"p95": 250}).overall == "fail"
    assert of_slos(records, ttft_ms={"p95": 250.01}).overall == "pass"


def test_each_bound_is_judged_by_its_own_figure_in_its_own_unit() -> None:
    verdicts = of_slos(
        [record(pieces_s=(20.0, 20.01), cold_wait_s=19.0), record(pieces_s=(0.1, 0.11))],
        ttft_ms={"p50": 30_000},
        warm_ttft_ms={"p99": 200},
        cold_wait_s={"p50": 15},
        itl_ms={"p95": 9},
    )

    assert [(one.name, one.unit, one.ok) for one in verdicts.verdicts] == [
        ("slos.ttft_ms.p50", "ms", True),
        ("slos.warm_ttft_ms.p99", "ms", True),
        ("slos.cold_wait_s.p50", "s", False),
        ("slos.itl_ms.p95", "ms", False),
    ]
    assert named(verdicts, "slos.cold_wait_s.p50").value == 19
    assert named(verdicts, "slos.warm_ttft_ms.p99").value == pytest.approx(100)
    assert verdicts.exit_status == 3


def test_unmeasured_bounds_are_not_judged() -> None:
    verdicts = of_slos([record(pieces_s=(0.1,))], cold_wait_s={"p50": 15}, itl_ms={"p50": 9})

    assert verdicts.overall == "pass"
    assert [(one.ok, one.value) for one in verdicts.verdicts] == [(None, None)] * 2
    assert "no request was queued for a cold start" in named(verdicts, "slos.cold_wait_s.p50").words
    assert "nothing was judged" in verdicts.words


def test_errors_before_any_gap_miss_the_bounds_of_itl() -> None:
    verdicts = of_slos([error("failed", 500, "x")], itl_ms={"p50": 9})

    assert verdicts.overall == "fail"
    assert verdicts.words.endswith("slos.itl_ms.p50 = never is not below 9 ms.")


def test_never_misses_every_bound() -> None:
    verdicts = judged(samples.empty())

    assert verdicts.overall == "fail"
    assert named(verdicts, "slos.ttft_ms.p50").value == math.inf
    assert "slos.ttft_ms.p50 = never is not below 100 ms" in verdicts.words


def test_a_value_that_rounds_to_its_bound_is_shown_with_more_digits() -> None:
    (verdict,) = of_slos([record(pieces_s=(0.2001,))], ttft_ms={"p50": 200}).verdicts

    assert verdict.words == "slos.ttft_ms.p50 = 200.1 ms is not below 200 ms"


def test_errors_are_a_share_of_all_requests() -> None:
    records = [record(pieces_s=(0.1,))] * 99 + [error("failed", 500, "x")]

    assert of_slos(records, error_rate=0.01).overall == "fail"
    assert of_slos(records, error_rate=0.011).overall == "pass"


def test_broken_streams_may_be_as_many_as_are_allowed() -> None:
    broken = [record(pieces_s=(0.1,), outcome="broken")] * 2
    for most, overall in ((1, "fail"), (2, "pass"), (None, "pass")):
        of = samples.scenario(slos=NOTHING, broken_streams=most)

        assert judged(samples.run(of, broken)).overall == overall


def scaled(ready: list[tuple[float, int]], **scaling: Any) -> Verdicts:
    of = samples.scenario(slos=NOTHING, scaling=scaling)
    looks = tuple(Sample(at_s=at, model=MODEL, ready=count) for at, count in ready)
    return judged(samples.run(of, [record(at_s=1.0, ended_s=10.0)], samples=looks, duration_s=100.0))


def test_scaling_is_judged_by_the_replicas_that_were_seen() -> None:
    looks = [(0.0, 0), (5.0, 3), (40.0, 0)]

    assert scaled(looks, starts_at=0, reaches=3, returns_to=0, within_s=30).overall == "pass"
    assert scaled(looks, reaches=4).overall == "fail"
    assert scaled(looks, returns_to=0, within_s=29).overall == "fail"
    assert scaled(looks[:2], returns_to=0, within_s=29).verdicts[-1].value == math.inf


def test_a_start_with_other_replicas_than_demanded_is_invalid() -> None:
    verdicts = scaled([(0.0, 1)], starts_at=0)

    assert verdicts.overall == "invalid"
    assert "scaling.starts_at = 0" in verdicts.words


def test_demands_on_replicas_that_nobody_saw_are_invalid() -> None:
    verdicts = scaled([], reaches=1)

    assert verdicts.overall == "invalid"
    assert f"reported no replica counts for {MODEL}" in verdicts.words


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("sent_p99_ms", 10.1, "client.lag_p99_ms = 10"),
        ("sent_max_ms", 251.0, "client.lag_max_ms = 250"),
        ("noticed_p99_ms", 11.0, "client.lag_p99_ms = 10"),
        ("noticed_max_ms", 300.0, "client.lag_max_ms = 250"),
        ("sent_p99_ms", math.nan, "an unknown time"),
    ],
)
def test_a_late_client_makes_a_good_run_invalid(field: str, value: float, told: str) -> None:
    kept = samples.steady()
    late = replace(kept, timekeeping=replace(kept.timekeeping, **{field: value}))

    verdicts = judged(late)

    assert (verdicts.overall, verdicts.exit_status) == ("invalid", 4)
    (reason,) = verdicts.invalid
    assert told in reason
