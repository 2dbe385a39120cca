from typing import Any

import pytest

from benchmarks.peers.policies import PUBLISHED
from replay.laws.registry import SpecError
from replay.result import Result
from replay.run import check_policy, policy_names, replay
from replay.scenario import scenario
from replay.simulation import simulate
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError
from tests.replay.traffic import steady, two_bursts


def test_the_production_policy_is_replayed_by_default() -> None:
    result = replay(steady(duration_s=120.0))

    assert result.policy == "ours"
    assert result.requests == 120
    assert result.attainment == 1.0
    assert (result.knobs["max_replicas"], result.knobs["headroom"]) == (32, Knobs().headroom)


def test_the_targets_and_the_percentile_are_those_of_the_knobs() -> None:
    knobs = Knobs(ttft_target_s=0.5, itl_target_s=0.05, ttft_percentile=90)

    result = replay(steady(duration_s=60.0), policy="static:1", knobs=knobs)

    assert (result.ttft_target_s, result.itl_target_s, result.percentile) == (0.5, 0.05, 90.0)
    assert result.knobs == {
        "min_replicas": 1,
        "max_replicas": 1,
        "ttft_target_s": 0.5,
        "ttft_percentile": 90,
        "itl_target_s": 0.05,
        "max_held_requests": 1000,
        "drain_move_after_s": 5.0,
    }


@pytest.mark.parametrize("policy", ["ours", *PUBLISHED])
def test_every_policy_begins_with_what_the_first_minutes_need(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def noted(*args: Any, **options: Any) -> Result:
        begun.append(options["initial"])
        return simulate(*args, **options)

    monkeypatch.setattr("replay.scenario.simulate", noted)

    replay(steady(rate=10.0, duration_s=10.0), policy=policy)

    assert begun == [3]  # the least that attain the targets at ten requests a second
    replay(steady(rate=10.0, duration_s=10.0), policy=policy, initial=5)
    assert begun == [3, 5]


def test_a_static_fleet_stands_from_the_start() -> None:
    result = replay(steady(duration_s=60.0), policy="static:3")

    assert (result.policy, result.starts, result.timeline.ready[0]) == ("static:3", 0, 3)


def test_equal_seeds_give_equal_results_and_others_do_not() -> None:
    trace = two_bursts(300.0)
    first, again, other = (replay(trace, policy="ray", seed=seed, initial=0) for seed in (1, 1, 2))

    assert first.gpu_seconds == again.gpu_seconds
    assert first.timeline.ready.tolist() == again.timeline.ready.tolist()
    assert first.gpu_seconds != other.gpu_seconds


def test_cold_starts_failures_and_room_are_as_asked_for() -> None:
    trace = two_bursts(300.0)

    result = replay(trace, policy="ray", cold_start_s=(10.0, 10.0), start_failures=0.5, capacity=2, initial=0)

    assert result.failed_starts > 0
    assert result.peak == 2


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("luck", "no such policy; there are ours, oracle, ray, kpa, hpa, apa, dynamo, wva, static"),
        ("schedule", "no such policy"),
        ("ours:2", "ours takes no setting"),
        ("ray:none", "must be a number above 0"),
    ],
)
def test_a_policy_that_does_not_exist_is_named(policy: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        replay(steady(), policy=policy)


def test_a_static_fleet_beyond_the_bounds_is_refused() -> None:
    with pytest.raises(SettingsError, match="'static:9': must be from min_replicas = 1 to max_replicas = 4"):
        replay(steady(), policy="static:9", knobs=Knobs(max_replicas=4))


@pytest.mark.parametrize("policy", ["ours", "oracle", "static", "static:4", *PUBLISHED])
def test_what_can_be_replayed_passes_the_check(policy: str) -> None:
    check_policy(policy, scenario(steady()))

    assert policy.partition(":")[0] in policy_names()
