import pytest

from benchmarks.peers.policies import PUBLISHED
from replay.defaults import GOAL
from replay.policies import SpecError
from replay.run import check_policy, least_static, policy_names, replay, static
from replay.scenario import scenario
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError
from tests.replay.traffic import steady


def test_the_production_policy_is_replayed_by_default() -> None:
    result = replay(steady(duration_s=120.0))

    assert result.policy == "ours"
    assert result.requests == 120
    assert result.attainment == 1.0
    assert (result.knobs["max_replicas"], result.knobs["headroom"]) == (32, Knobs().headroom)


@pytest.mark.parametrize("policy", ["ours", "ray", "kpa"])
def test_policies_begin_with_the_replicas_of_the_first_minutes(policy: str) -> None:
    trace = steady(rate=10.0, duration_s=10.0)

    # Three are the least that attain the targets at ten requests a second.
    assert replay(trace, policy=policy).timeline.ready[0] == 3
    assert replay(trace, policy=policy, initial=5).timeline.ready[0] == 5


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
def test_every_policy_passes_the_check(policy: str) -> None:
    check_policy(policy, scenario(steady()))

    assert policy.partition(":")[0] in policy_names()


def test_least_static_fleet_attains_the_goal() -> None:
    asked = scenario(steady(rate=20.0, duration_s=120.0), knobs=Knobs(max_replicas=16))

    found = least_static(asked)

    assert found.attainment >= GOAL
    assert found.starts == 0  # ready from the start
    replicas = int(found.policy.removeprefix("static:"))
    assert replicas == found.peak
    assert static(asked, replicas - 1).attainment < GOAL


def test_least_static_without_a_fleet_that_attains_the_goal() -> None:
    # An empty replica takes 11.6 ms a token.
    hopeless = Knobs(max_replicas=8, itl_target_s=0.005)

    found = least_static(scenario(steady(duration_s=60.0), knobs=hopeless))

    assert found.policy == "static:1"
    assert found.attainment == 0.0


def test_initial_replicas_apply_to_static_fleets() -> None:
    result = static(scenario(steady(duration_s=200.0), initial=0), 1)

    assert result.starts == 1
    assert result.ttft_cold.count > 0


def test_least_static_progress_rises_to_one() -> None:
    told: list[float] = []

    least_static(scenario(steady(duration_s=60.0), knobs=Knobs(max_replicas=8)), told.append)

    assert told == sorted(told)
    assert told[-1] == 1.0
