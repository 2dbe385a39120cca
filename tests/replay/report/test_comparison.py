from dataclasses import replace

import pytest

from replay.report.comparison import cheapest_peer, standings, verdict
from tests.replay.report import samples


@pytest.fixture(scope="module")
def results() -> list[samples.Result]:
    return samples.realistic()


def test_results_and_peers_are_one_list_cheapest_first_with_no_policy_twice(
    results: list[samples.Result],
) -> None:
    rows = standings(results)

    assert [row.gpu_seconds for row in rows] == sorted(row.gpu_seconds for row in rows)
    assert len({row.policy for row in rows}) == len(rows) == 10
    replayed = next(row for row in rows if row.policy == "ray(target=5)")
    assert replayed.gpu_seconds == results[1].gpu_seconds.total
    assert [row.policy for row in rows if row.main] == ["tideserve"]


def test_the_ratio_is_below_one_where_the_main_policy_is_cheaper(results: list[samples.Result]) -> None:
    static = next(row for row in standings(results) if row.policy == "static:16")

    assert static.ratio == pytest.approx(results[0].gpu_seconds.total / 172_800)
    assert static.oracle_ratio == pytest.approx(172_800 / (0.8 * results[0].gpu_seconds.total))


def test_the_front_rises_and_the_oracle_is_not_on_it(results: list[samples.Result]) -> None:
    rows = standings(results)
    front = [row.attainment for row in rows if row.on_front]

    assert front == sorted(set(front))
    assert not next(row for row in rows if row.policy == "oracle").on_front
    assert not next(row for row in rows if row.policy == "hpa(waiting=1)").on_front


def test_of_two_policies_that_cost_the_same_only_the_better_is_on_the_front() -> None:
    one = replace(samples.empty(), policy="worse", attainment=0.5)
    other = replace(samples.empty(), policy="better", attainment=0.9)

    assert [row.policy for row in standings([one, other]) if row.on_front] == ["better"]


def test_the_cheapest_peer_is_one_that_reaches_the_goal(results: list[samples.Result]) -> None:
    peer = cheapest_peer(standings(results))

    assert peer is not None
    assert peer.policy == "ray(target=5)"
    assert cheapest_peer(standings([samples.empty()])) is None


def test_the_verdict_speaks_of_minutes_the_oracle_and_the_cheapest_peer(
    results: list[samples.Result],
) -> None:
    text = verdict(results[0], standings(results))

    assert "minutes with traffic" in text
    assert "1.25 times what a clairvoyant schedule would have paid" in text
    assert text.endswith("fewer GPU-seconds than ray(target=5), the cheapest other policy that reaches 99 %.")
    assert "no requests" in verdict(samples.empty(), standings([samples.empty()]))


def test_results_and_the_main_one_must_be_given() -> None:
    with pytest.raises(ValueError, match="main = 0 must be an index of results, which are 0"):
        standings([])
    with pytest.raises(ValueError, match="main = 1 must be an index of results, which are 1"):
        standings([samples.empty()], main=1)
