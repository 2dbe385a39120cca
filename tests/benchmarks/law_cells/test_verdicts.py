from dataclasses import replace

from benchmarks.law_cells.verdicts import verdicts
from tests.benchmarks.law_cells.build import BURSTS, CALM, row


def met(*given: object, laws: tuple[str, ...] = ()) -> list[bool | None]:
    return [verdict.met for verdict in verdicts(given, laws)]  # type: ignore[arg-type]


def test_smooth_traffic_is_to_be_attained_where_a_static_fleet_attains_it() -> None:
    assert met(row()) == [True, True]
    missed = verdicts([row(), row(replace(CALM, name="other"), ours=(1200.0, 0.98))], [])[0]
    assert (missed.met, missed.shown) == (False, "1 of 2: base other 98.0 %")
    assert met(row(), row(ours=(1200.0, 0.5), static=(2000.0, 0.98))) == [True, True]


def test_bursty_traffic_need_not_be_attained_and_its_cost_does_not_count() -> None:
    assert met(row(), row(BURSTS, ours=(5000.0, 0.5))) == [True, True]


def test_the_mean_cost_of_smooth_traffic_is_held_against_the_oracles() -> None:
    assert met(row(ours=(1249.0, 1.0)))[1] is True
    assert met(row(ours=(1200.0, 1.0)), row(ours=(1310.0, 1.0)))[1] is False
    # An oracle that attains too little itself is no measure.
    assert met(row(), row(ours=(9000.0, 1.0), oracle=(1000.0, 0.98)))[1] is True


def test_a_law_that_is_cheaper_and_attains_more_is_told_with_its_cell() -> None:
    beaten = row(ours=(1200.0, 0.995), before=(1100.0, 0.998))

    found = verdicts([row(before=(1100.0, 0.995)), beaten, row(before=(1300.0, 1.0))], ["before"])[2]

    assert found.met is False
    assert found.shown == "1 of 3: base calm: 1,100 GPU-s @ 99.8 % to ours 1,200 GPU-s @ 99.5 %"


def test_bursty_traffic_is_to_be_no_worse_than_before_by_more_than_a_tenth_of_a_point() -> None:
    assert met(row(), row(BURSTS, ours=(900.0, 0.93), before=(800.0, 0.9309)), laws=("before",))[3] is True
    assert met(row(), row(BURSTS, ours=(900.0, 0.93), before=(1000.0, 0.9320)), laws=("before",))[3] is False
    assert met(row(ours=(900.0, 0.99), before=(1000.0, 1.0)), laws=("before",))[3] is True


def test_what_was_not_run_is_not_judged() -> None:
    nothing = replace(row(), runs={})

    assert met(nothing, laws=("before",)) == [None] * 4
