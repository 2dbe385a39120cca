from typing import Any

import numpy as np
import pytest

from replay.defaults import GOAL, KNOBS
from replay.hindsight.need import read_need
from replay.hindsight.timetable import Schedule, Timetable, fill_gaps
from replay.result import Result
from replay.run import replay
from replay.scenario import scenario
from serve_app.policy.capacity_model import Mix, capacity_rps
from tests.benchmarks.peers.build import sample
from tests.replay.traffic import of, steady, two_bursts
from traces import ArrayTrace
from traces.trace import Chunk, Ints


def oracle(trace: ArrayTrace, **options: Any) -> Result:
    return replay(trace, policy="oracle", **options)


def test_oracle_keeps_replicas_through_short_silences_only() -> None:
    long, short = oracle(two_bursts(300.0)), oracle(two_bursts(60.0))

    for result in (long, short):
        assert result.policy == "oracle"
        assert result.attainment >= GOAL
    # Idle through a minute is cheaper than a cold start of 75 s, and through five minutes it is not.
    assert short.gpu_seconds.idle > 60.0
    assert long.gpu_seconds.idle < 60.0
    assert long.starts > short.starts


def test_it_costs_less_than_a_static_fleet_chosen_with_hindsight() -> None:
    assert (
        oracle(two_bursts(300.0)).gpu_seconds.total
        < replay(two_bursts(300.0), policy="static").gpu_seconds.total
    )


def test_oracle_pays_for_extra_replicas_at_the_start() -> None:
    free, paid = oracle(two_bursts(60.0), initial=3), oracle(two_bursts(60.0), initial=0)

    assert free.gpu_seconds.warming == 0.0
    assert paid.gpu_seconds.warming == pytest.approx(paid.starts * 75.0)
    assert paid.starts >= 3


def test_short_cold_starts_are_followed_closely() -> None:
    quick, slow = oracle(two_bursts(60.0), cold_start_s=(2.0, 4.0)), oracle(two_bursts(60.0))

    assert quick.gpu_seconds.total < 0.6 * slow.gpu_seconds.total
    assert quick.attainment >= GOAL


def test_oracle_lets_a_lone_request_wait_for_the_next_replica() -> None:
    busy = np.arange(600.0, 700.0, 0.25)
    result = oracle(of(np.concatenate([[0.0], busy]), "one early"), initial=0)

    assert GOAL <= result.attainment < 1.0
    assert result.starts == 1
    assert result.gpu_seconds.total < 200.0


def test_minutes_that_no_fleet_attains_are_not_chased() -> None:
    # 5,000 tokens take 250 ms by themselves.
    at = np.arange(0.0, 180.0, 0.5)
    trace = ArrayTrace("long prompts", at, np.full(len(at), 5000), np.full(len(at), 20))

    result = oracle(trace)

    assert result.attainment == 0.0
    assert result.infeasible == 1.0
    assert result.peak <= 3


def test_the_need_is_the_rate_over_what_one_replica_carries() -> None:
    asked = scenario(steady(rate=4.0, duration_s=120.0))
    carries = capacity_rps(asked.profile.step, Mix(400.0, 1.0, 20.0), KNOBS, asked.profile.kv_cache_tokens)

    need = read_need(asked, slot_s=10.0)

    assert need.replicas == pytest.approx(np.full(12, 4.0 / carries))
    assert need.window.tolist() == [0] * 6 + [1] * 6
    assert need.requests.tolist() == [240.0, 240.0]
    assert not need.lost.any()
    assert 0.2 < need.drain_s < 0.4  # 20 tokens of some 12 ms


def test_minutes_of_prompts_too_long_for_the_target_are_lost() -> None:
    # 20,000 tokens a second: 5,000 take 250 ms, and the target is 200 ms.
    at = np.arange(0.0, 120.0, 1.0)
    prompts = np.where((at >= 60) & (np.arange(120) % 10 == 0), 5000, 400)

    need = read_need(scenario(ArrayTrace("long", at, prompts, np.full(120, 20))), slot_s=10.0)

    assert need.lost.tolist() == [False, True]


def test_chunks_are_added_up_wherever_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = steady(rate=2.0, duration_s=200.0)
    usual = read_need(scenario(whole), slot_s=10.0)

    def cut() -> list[Chunk]:
        (chunk,) = whole.chunks()
        return [
            Chunk(chunk.arrival_s[i : i + 7], chunk.input_tokens[i : i + 7], chunk.output_tokens[i : i + 7])
            for i in range(0, len(chunk), 7)
        ]

    pieces = cut()
    monkeypatch.setattr(whole, "chunks", lambda: iter(pieces))
    found = read_need(scenario(whole), slot_s=10.0)

    assert found.replicas == pytest.approx(usual.replicas)
    assert found.requests.tolist() == usual.requests.tolist()


def ints(text: str) -> Ints:
    return np.array([int(digit) for digit in text], dtype=np.int64)


@pytest.mark.parametrize(
    ("replicas", "slots", "kept"),
    [
        ("1001", 3, "1111"),  # two slots of silence are less than three
        ("10001", 3, "10001"),
        ("312013", 2, "322113"),
        ("33133", 1, "33133"),
        ("0010", 4, "0010"),  # what lies before the first and after the last is no gap
        ("21012", 4, "22222"),
    ],
)
def test_short_valleys_are_filled(replicas: str, slots: int, kept: str) -> None:
    assert fill_gaps(ints(replicas), slots).tolist() == ints(kept).tolist()


def test_starts_are_one_cold_start_early_and_stops_on_time() -> None:
    timetable = Timetable(slot_s=10.0, cold_start_s=25.0, ready=ints("1111311"))

    # Three are ready at 40 s: the two more are asked for 25 s before; two go at 50 s, and one stays.
    assert timetable.steps == [(0.0, 1), (15.0, 3), (50.0, 1), (70.0, 1)]


def test_replicas_needed_at_once_are_billed_a_whole_start() -> None:
    timetable = Timetable(slot_s=10.0, cold_start_s=75.0, ready=ints("1122200"))

    # The first is needed at once, the second at 20 s; with one that is there anyway only 55 s are left.
    assert timetable.steps[0] == (0.0, 2)
    assert timetable.prepaid(warm=0) == (2, 75.0 + 55.0)
    assert timetable.prepaid(warm=1) == (1, 55.0)
    assert timetable.prepaid(warm=2) == (0, 0.0)
    assert timetable.prepaid(warm=5) == (0, 0.0)


def test_it_asks_for_the_entry_in_force() -> None:
    schedule = Schedule([(5.0, 2), (10.0, 7), (10.5, 0)], "oracle")
    asked = [schedule.decide(sample(at)) for at in (0.0, 5.0, 9.5, 10.0, 10.5, 99.0)]

    assert asked == [2, 2, 2, 7, 0, 0]
