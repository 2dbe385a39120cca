from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from loadtests.columns import NEVER, Columns
from loadtests.record import OUTCOMES
from loadtests.summary import summarize, width_s, windows
from tests.loadtests import samples
from tests.loadtests.samples import error, record


def test_every_request_has_one_outcome_and_is_counted_once() -> None:
    counts = summarize(samples.cold_burst()).counts

    assert counts.requests == sum(getattr(counts, outcome) for outcome in OUTCOMES)
    assert (counts.cold, counts.retried, counts.rejected, counts.broken) == (30, 2, 1, 1)
    assert counts.errors == 2
    assert counts.error_rate == 2 / counts.requests


def test_kinds_and_models_add_up_to_all() -> None:
    summary = summarize(samples.cold_burst())

    for groups in (summary.by_kind, summary.by_model):
        assert sum(one.requests for one in groups.values()) == summary.counts.requests
        assert sum(one.cold for one in groups.values()) == 30
    assert list(summary.by_kind) == ["chat", "impatient"]


def test_no_request_is_dropped_from_ttft() -> None:
    summary = summarize(samples.cold_burst())
    latencies = summary.latencies

    assert latencies.ttft is not None
    assert latencies.ttft_warm is not None
    assert latencies.ttft_cold is not None
    assert latencies.ttft.count == summary.counts.requests
    assert latencies.ttft.count == latencies.ttft_warm.count + latencies.ttft_cold.count
    assert (latencies.ttft.never, latencies.ttft.max) == (1, NEVER)


def test_a_run_without_an_answer_says_never_and_measures_no_itl() -> None:
    summary = summarize(samples.empty())

    assert summary.latencies.ttft is not None
    assert summary.latencies.ttft.p50 == NEVER
    assert summary.latencies.itl is summary.latencies.ttft_warm is None
    assert summary.latencies.tpot is not None
    assert summary.latencies.tpot.p50 == NEVER
    assert summary.rates.answered_rps == summary.rates.goodput == 0
    assert summary.rates.tokens_per_piece is summary.prompt_cache is summary.conversations is None


def test_no_more_is_answered_a_second_than_was_offered() -> None:
    of = samples.scenario(arrivals=[{"shape": "steady", "for_s": 10, "rate": 1}], repeat=2)
    answers = [record(at_s=at, pieces_s=(at + 1.0, at + 2.0), ended_s=at + 2.0) for at in (1.0, 9.0)]

    rates = summarize(samples.run(of, answers, duration_s=60.0)).rates

    assert (rates.arrivals_s, rates.span_s) == (20, 20)
    assert (rates.offered_rps, rates.answered_rps, rates.output_tokens_per_s) == (0.1, 0.1, 0.2)


def test_a_late_server_answers_fewer_requests_than_offered() -> None:
    of = samples.scenario(arrivals=[{"shape": "steady", "for_s": 10, "rate": 1}])
    answers = [record(at_s=at, pieces_s=(39.0, 40.0), ended_s=40.0) for at in range(10)]

    rates = summarize(samples.run(of, answers, duration_s=60.0)).rates

    assert (rates.offered_rps, rates.answered_rps) == (1.0, 0.25)


def goodput(*records: Any, **slos: Any) -> float | None:
    of = samples.scenario(slos=slos)
    return summarize(samples.run(of, records)).rates.goodput


def test_goodput_needs_both_targets_of_one_request_and_no_error() -> None:
    good = record(pieces_s=(0.2, 0.22, 0.24))
    late, slow = record(pieces_s=(0.201, 0.22)), record(pieces_s=(0.1, 0.2))
    cut = replace(good, outcome="broken")
    bounds = {"ttft_ms": {"p95": 200}, "itl_ms": {"p95": 25}}

    assert goodput(good, late, slow, cut, **bounds) == 0.25
    assert goodput(good, late, slow, cut, ttft_ms=None, itl_ms=bounds["itl_ms"]) == 0.5
    assert goodput(good, late, slow, cut, ttft_ms=bounds["ttft_ms"], itl_ms=None) == 0.5
    assert goodput(good, ttft_ms=None, itl_ms=None) is None


def test_goodput_falls_back_to_p99_and_judges_warm_requests() -> None:
    answer = record(pieces_s=(0.2, 0.22, 0.24))
    cold = replace(answer, cold_wait_s=0.6)

    assert goodput(answer, ttft_ms={"p99": 1}, itl_ms=None) == 0.0
    assert goodput(answer, ttft_ms={"p50": 1, "p99": 300}, itl_ms=None) == 1.0
    assert goodput(answer, cold, ttft_ms=None, itl_ms=None, warm_ttft_ms={"p50": 100}) == 0.5


def test_clients_that_left_early_are_noted_beside_ttft() -> None:
    left = record(outcome="left"), record(outcome="left", pieces_s=(0.5,)), record(pieces_s=(0.5,))

    assert summarize(samples.run(samples.scenario(), left)).counts.left_waiting == 1


def test_warm_latencies_are_shown_only_beside_cold_ones() -> None:
    cold = [name for name, _ in summarize(samples.cold_burst()).latencies.named()]
    steady = [name for name, _ in summarize(samples.steady()).latencies.named()]

    assert cold[:4] == ["TTFT", "TTFT, warm", "TTFT, cold start over 0.5 s", "cold wait"]
    assert steady[:2] == ["TTFT", "ITL"]


def test_messages_that_differ_in_ids_and_numbers_are_one_trouble() -> None:
    records = [
        error("failed", 500, f"request 7f{at}a failed after {at}.5 s", index=at, ended_s=9.0 - at)
        for at in range(3)
    ]
    records.append(error("rejected", 429, "full", index=3))

    first, second = summarize(samples.run(samples.scenario(), records)).troubles

    assert (first.count, first.first_index, first.first_s) == (3, 2, 7.0)
    assert first.words == "request 7f2a failed after 2.5 s"
    assert (second.outcome, second.status, second.count) == ("rejected", 429, 1)


@pytest.mark.parametrize(
    ("duration_s", "width"),
    [(0.5, 1), (120, 1), (121, 2), (600, 5), (1800, 15), (3600, 30), (10_800, 120), (36_000, 300)],
)
def test_the_width_is_the_narrowest_round_one(duration_s: float, width: float) -> None:
    assert width_s(duration_s) == width


def test_requests_count_by_intended_time_and_gaps_by_arrival() -> None:
    answer = record(at_s=0.2, pieces_s=(1.5, 2.5, 2.75), ended_s=2.8)
    first, second, third = windows(Columns.of([answer]), 3.0)

    assert [one.arrivals for one in (first, second, third)] == [1, 0, 0]
    assert first.rate_rps == 1.0
    assert first.ttft_s is not None
    assert first.ttft_s.p95 == pytest.approx(1.3)
    assert second.ttft_s is second.itl_s is first.itl_s is None
    assert third.itl_s is not None
    assert (third.itl_s.count, third.itl_s.max) == (2, 1.0)


def test_open_streams_are_an_average_over_the_window() -> None:
    streams = [
        record(sent_s=0.0, pieces_s=(1.5,), ended_s=1.5),
        record(sent_s=0.75, pieces_s=(1.0,), ended_s=1.0),
    ]

    told = [one.open_streams for one in windows(Columns.of(streams), 2.0)]

    assert told == pytest.approx([1.25, 0.5])


def test_windows_cover_the_run_to_its_last_request() -> None:
    of = samples.cold_burst()
    told = windows(Columns.of(of.records), of.duration_s)

    assert told[0].start_s == 0
    assert told[-1].end_s == of.duration_s
    assert all(one.end_s == after.start_s for one, after in pairwise(told))
    assert sum(one.arrivals for one in told) == len(of.records)
    assert sum(one.itl_s.count for one in told if one.itl_s) == len(Columns.of(of.records).gap_s)


def test_a_remainder_is_no_window_of_its_own() -> None:
    answers = [record(at_s=at, pieces_s=(at + 0.1,)) for at in (0.5, 1.5, 2.001)]
    told = windows(Columns.of(answers), 2.2)

    assert [(one.start_s, one.end_s, one.arrivals) for one in told] == [(0, 1, 1), (1, 2.2, 2)]
    assert [one.end_s for one in windows(Columns.of(answers), 2.6)] == [1, 2, 2.6]
