import math
from dataclasses import replace

import numpy as np
import pytest

from loadtests.columns import Columns
from loadtests.record import Sample
from loadtests.report.chart_data import (
    MOST_HOLDS,
    MOST_LOOKS,
    MOST_POINTS,
    curve,
    distributions,
    holds,
    points,
    queue_series,
    replica_series,
    window_series,
)
from loadtests.summary import summarize
from tests.loadtests import samples


def test_windows_count_answers_when_they_end_and_errors_when_they_were_due() -> None:
    records = (
        samples.record(0, 0.5, (0.6, 2.4)),
        samples.error("rejected", 429, "no", index=1, at_s=0.7, ended_s=2.9),
    )
    run = samples.run(samples.scenario(), records, duration_s=4.0)
    series = window_series(run, summarize(run))

    assert series["start_s"] == [0.0, 1.0, 2.0, 3.0]
    assert series["offered_rps"] == [2, 0, 0, 0]
    assert series["answered_rps"] == [0, 0, 1, 0]
    assert series["errors"]["rejected"] == [1, 0, 0, 0]
    assert series["ttft"]["p99"] == ["never", None, None, None]
    assert series["itl"]["p50"] == [None, None, 1.8, None]


def test_unreported_counts_are_null_and_queues_are_summed() -> None:
    looks = (
        Sample(0.0, "a", ready=1, held=2, waiting=1),
        Sample(0.0, "b", ready=0, held=3),
        Sample(1.0, "a", ready=2, held=0, waiting=0),
    )
    run = samples.run(samples.scenario(), (), samples=looks)

    models = replica_series(run)
    assert [model["model"] for model in models] == ["a", "b"]
    assert models[0]["ready"] == [1, 2]
    assert models[0]["target"] == [None, None]
    queues = queue_series(run)
    assert queues["held"] == [5, 3]
    assert queues["waiting"] == [1, 0]
    assert queues["running"] == [None, None]
    assert queue_series(replace(run, samples=()))["at_s"] == []


def test_a_short_peak_is_still_seen_in_a_long_run() -> None:
    looks = [Sample(float(at), "m", ready=1) for at in range(10_000)]
    looks[4321] = replace(looks[4321], ready=7)
    series = replica_series(samples.run(samples.scenario(), (), samples=tuple(looks)))[0]

    assert len(series["at_s"]) <= MOST_LOOKS
    assert max(series["ready"]) == 7


def test_a_curve_is_dense_near_the_percentiles() -> None:
    values = np.append(np.linspace(0.001, 1.0, 9900), np.full(100, math.inf))
    found = curve(values)

    assert (found["count"], found["never"]) == (10_000, 100)
    assert found["share"][-1] == pytest.approx(0.99, abs=0.001)
    assert sum(share > 0.9 for share in found["share"]) > 40
    assert found["value_s"] == sorted(found["value_s"])
    at_median = min(range(len(found["share"])), key=lambda place: abs(found["share"][place] - 0.5))
    assert found["value_s"][at_median] == pytest.approx(0.505, abs=0.01)


def test_warm_and_cold_requests_have_curves_of_their_own() -> None:
    cold = distributions(Columns.of(samples.cold_burst().records))
    warm = distributions(Columns.of(samples.steady().records))

    assert [each["name"] for each in cold["ttft"]] == ["all", "warm", "held"]
    assert [each["name"] for each in warm["ttft"]] == ["all"]
    assert distributions(Columns.of(())) == {"ttft": [], "itl": []}


def test_points_are_thinned_but_keep_every_error_and_the_extremes() -> None:
    records = list(samples.long().records)
    for at in range(0, 20_000, 40):
        records[at] = replace(records[at], outcome="failed", status=500, error="engine_error", pieces_s=())
    slowest = replace(records[12_345], pieces_s=(records[12_345].at_s + 99.0,))
    records[12_345] = slowest
    found = points(records, Columns.of(records))

    assert len(found["at_s"]) == MOST_POINTS
    assert found["of"] == 20_000
    assert found["outcome"].count("failed") == 500
    assert len(found["errors"]) == 500
    assert 99.0 in found["ttft_s"]
    assert found["ttft_s"].count("never") == 500
    assert found["at_s"] == sorted(found["at_s"])


def test_a_cold_wait_is_split_into_its_phases() -> None:
    held = samples.record(
        0, 10.0, (18.0, 18.1), cold_wait_s=7.5, phases=((11.0, "imports"), (15.0, "warm_up"), (17.9, "late"))
    )
    bar = holds((held,), Columns.of((held,)))["bars"][0]

    assert [(part["phase"], part["from_s"], part["to_s"]) for part in bar["parts"]] == [
        ("", 0, 1), ("imports", 1, 5), ("warm_up", 5, 7.5),
    ]  # fmt: skip
    assert (bar["ended_s"], bar["answered"]) == (8, True)


def test_the_shortest_and_longest_cold_waits_are_drawn() -> None:
    records = [
        samples.record(at, 0.0, (1.0 + at,), cold_wait_s=1.0 + at)
        for at in np.random.default_rng(3).permutation(300)
    ]
    found = holds(records, Columns.of(records))
    waits = [bar["wait_s"] for bar in found["bars"]]

    assert (len(waits), found["of"]) == (MOST_HOLDS, 300)
    assert (min(waits), max(waits)) == (1, 300)
