from replay.defaults import GOAL
from replay.hindsight.least_static import least_static, static
from replay.scenario import scenario
from serve_app.settings.knobs import Knobs
from tests.replay.traffic import steady


def test_it_is_the_least_fleet_that_attains_the_goal() -> None:
    asked = scenario(steady(rate=20.0, duration_s=120.0), knobs=Knobs(max_replicas=16))

    found = least_static(asked)

    assert found.attainment >= GOAL
    assert found.starts == 0  # ready from the start
    replicas = int(found.policy.removeprefix("static:"))
    assert replicas == found.peak
    assert static(asked, replicas - 1).attainment < GOAL


def test_where_no_fleet_attains_it_the_least_that_attains_most_is_told() -> None:
    # An empty replica takes 11.6 ms a token.
    hopeless = Knobs(max_replicas=8, itl_target_s=0.005)

    found = least_static(scenario(steady(duration_s=60.0), knobs=hopeless))

    assert found.policy == "static:1"
    assert found.attainment == 0.0


def test_it_keeps_to_the_least_replicas_of_the_knobs() -> None:
    found = least_static(scenario(steady(duration_s=60.0), knobs=Knobs(min_replicas=2, max_replicas=4)))

    assert found.policy == "static:2"


def test_a_start_that_was_given_holds_for_a_static_fleet_too() -> None:
    result = static(scenario(steady(duration_s=200.0), initial=0), 1)

    assert result.starts == 1
    assert result.ttft_cold.count > 0


def test_progress_rises_to_the_end() -> None:
    told: list[float] = []

    least_static(scenario(steady(duration_s=60.0), knobs=Knobs(max_replicas=8)), told.append)

    assert told == sorted(told)
    assert told[-1] == 1.0
