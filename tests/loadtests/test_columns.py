import math

import numpy as np
import pytest

from loadtests.columns import NEVER, Columns, Percentiles, applicable, percentile
from loadtests.record import Outcome
from tests.loadtests.samples import error, record


def test_latencies_count_from_the_intended_time() -> None:
    columns = Columns.of([record(at_s=10.0, sent_s=10.4, pieces_s=(11.0, 11.1, 11.3), ended_s=11.4)])

    assert columns.ttft_s.tolist() == [1.0]
    assert columns.e2e_s == pytest.approx([1.4])
    assert columns.tpot_s == pytest.approx([0.15])
    assert columns.gap_s == pytest.approx([0.1, 0.2])
    assert columns.gap_at_s.tolist() == [11.1, 11.3]


@pytest.mark.parametrize("outcome", ["rejected", "failed", "abandoned", "broken"])
def test_an_error_before_the_first_piece_never_comes_and_is_not_dropped(outcome: Outcome) -> None:
    columns = Columns.of([error(outcome, 503, "no", planned_output_tokens=128, cold_wait_s=9.0)])

    for column in (columns.ttft_s, columns.tpot_s, columns.e2e_s, columns.hundred_s, columns.cold_wait_s):
        assert column.tolist() == [NEVER]
    assert columns.error.tolist() == [True]


def test_a_late_error_keeps_the_ttft_and_an_open_gap() -> None:
    broken = record(pieces_s=(0.5, 0.7), outcome="broken", output_tokens=None, planned_output_tokens=128)
    columns = Columns.of([broken])

    assert columns.ttft_s.tolist() == [0.5]
    assert columns.gap_s == pytest.approx([0.2, NEVER])
    assert columns.gap_at_s.tolist() == [0.7, broken.ended_s]
    assert columns.e2e_s.tolist() == columns.hundred_s.tolist() == columns.tpot_s.tolist() == [NEVER]


def test_a_stall_that_ends_in_a_timeout_is_in_the_gaps() -> None:
    stalled = record(pieces_s=(0.1, 0.12, 0.14), outcome="abandoned", ended_s=600.0)

    assert Columns.of([stalled]).gap_s.max() == NEVER


def test_an_early_leaver_counts_with_the_time_waited() -> None:
    columns = Columns.of([record(at_s=1.0, outcome="left", ended_s=4.0, cold_wait_s=2.9)])

    assert columns.ttft_s.tolist() == [3.0]
    assert columns.cold_wait_s.tolist() == [2.9]
    assert np.isnan(columns.e2e_s).all()


def test_a_late_leaver_has_no_end_to_end_latency() -> None:
    left = record(pieces_s=(0.5, 0.6), outcome="left", output_tokens=None, planned_output_tokens=200)
    columns = Columns.of([left])

    assert columns.ttft_s.tolist() == [0.5]
    assert len(columns.gap_s) == 1
    assert not len(applicable(columns.e2e_s))
    assert not len(applicable(columns.hundred_s))


def test_the_hundredth_token_is_the_hundredth_piece() -> None:
    pieces = [1.0 + 0.01 * at for at in range(120)]

    assert Columns.of([record(pieces_s=pieces)]).hundred_s == pytest.approx([1.99])


def test_tpot_is_by_tokens_and_not_by_pieces() -> None:
    merged = record(pieces_s=(1.0, 2.0), output_tokens=11)

    assert Columns.of([merged]).tpot_s == pytest.approx([0.1])
    assert np.isnan(Columns.of([record(pieces_s=(1.0,))]).tpot_s).all()


def test_cold_is_over_half_a_second_as_for_the_server() -> None:
    columns = Columns.of([record(pieces_s=(9.0,), cold_wait_s=waited) for waited in (0.0, 0.5, 0.51)])

    assert columns.cold.tolist() == [False, False, True]
    assert applicable(columns.cold_wait_s).tolist() == [0.51]


def test_percentiles_are_numpys_where_all_is_finite() -> None:
    values = np.random.default_rng(3).lognormal(size=1003)

    measured = Percentiles.of(values)

    assert measured is not None
    assert (measured.count, measured.never) == (1003, 0)
    expected = np.percentile(values, [50, 90, 95, 99, 100])
    assert (measured.p50, measured.p90, measured.p95, measured.p99, measured.max) == pytest.approx(expected)
    assert measured.mean == pytest.approx(values.mean())


def test_nothing_has_no_percentiles() -> None:
    assert Percentiles.of(np.zeros(0)) is None


def test_infinite_latencies_make_no_percentile_nan() -> None:
    measured = Percentiles.of(np.array([NEVER, 0.1, 0.2, 0.3, NEVER]))

    assert measured is not None
    assert (measured.count, measured.never) == (5, 2)
    assert (measured.p50, measured.p90, measured.max, measured.mean) == (0.3, NEVER, NEVER, NEVER)
    assert percentile(np.array([0.1, 0.2, NEVER]), 0.5) == 0.2
    assert percentile(np.array([0.1, 0.2, NEVER]), 0.51) == NEVER
    assert percentile(np.array([NEVER, NEVER]), 0.5) == NEVER


@pytest.mark.parametrize("at", [0.0, 0.5, 0.99, 1.0])
def test_one_value_is_every_percentile(at: float) -> None:
    assert percentile(np.array([7.0]), at) == 7.0
    assert not math.isnan(percentile(np.array([NEVER]), at))
