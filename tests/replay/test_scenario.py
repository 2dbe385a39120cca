from typing import Any

import numpy as np
import pytest

from replay.profile import load_profile
from replay.run import replay
from replay.scenario import scenario
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError
from tests.replay.traffic import of, steady

A100 = load_profile("a100-80gb")


def test_warm_replicas_depend_on_the_first_ten_minutes() -> None:
    calm = np.arange(0.0, 600.0, 0.25)
    rising = np.concatenate([calm, np.arange(600.0, 660.0, 0.01)])

    assert scenario(of(calm, "calm")).warm() == scenario(of(rising, "rising")).warm() > 0


def test_warm_replicas_attain_the_target_and_one_fewer_do_not() -> None:
    busy = steady(rate=40.0, duration_s=60.0)
    warm = scenario(busy).warm()

    assert replay(busy, policy=f"static:{warm}").attainment >= 0.99
    assert replay(busy, policy=f"static:{warm - 1}").attainment < 0.99


def test_warm_replicas_respect_bounds_and_capacity() -> None:
    busy = steady(rate=40.0, duration_s=60.0)

    assert scenario(busy).warm() > 4
    assert scenario(busy, knobs=Knobs(max_replicas=4)).warm() == 4
    assert scenario(busy, capacity=3).warm() == 3
    assert scenario(steady(), knobs=Knobs(min_replicas=2, max_replicas=4)).warm() == 2
    assert scenario(busy, initial=1).warm() == 1


def test_conditions_come_from_the_knobs_and_the_profile() -> None:
    knobs = Knobs(ttft_target_s=0.5, itl_target_s=0.05, max_held_requests=7)

    conditions = scenario(steady(), knobs=knobs, seed=3).conditions

    assert (conditions.ttft_target_s, conditions.itl_target_s) == (0.5, 0.05)
    assert conditions.background_step_s == pytest.approx(0.04)
    assert conditions.cold_start_s == A100.cold_start_s
    assert (conditions.max_held, conditions.seed, conditions.block_tokens) == (7, 3, 0)
    assert (conditions.warm_node_start_s, conditions.warm_nodes) == (None, 0)


def test_knobs_that_only_advise_act_in_a_replay() -> None:
    assert scenario(steady(), knobs=Knobs(mode="advise")).knobs.mode == "act"


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"seed": -1}, "seed = -1: must be at least 0"),
        ({"initial": 33}, "initial = 33: must be from 0 to max_replicas = 32"),
        (
            {"routing": "luck"},
            "routing = 'luck': must be one of prefix-aware, grouped, tokens, two-choices, text-tree",
        ),
        ({"capacity": 0}, "capacity = 0: must be from 1 to 10000"),
        ({"start_failures": 1.0}, "start_failures = 1: must be from 0 to 0.9"),
        (
            {"cold_start_s": (90.0, 60.0)},
            "cold_start_s = [90.0, 60.0]: must be two numbers from 0 to 86400, the first at most the second",
        ),
    ],
)
def test_an_option_out_of_its_bounds_is_named_with_them(option: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        scenario(steady(), **option)

    assert error.value.problems == [problem]


def test_steps_smaller_than_the_batch_are_refused() -> None:
    profile = A100.model_copy(update={"max_num_batched_tokens": 32})

    with pytest.raises(
        SettingsError, match="profile a100-80gb: max_num_batched_tokens = 32: must be at least"
    ):
        scenario(steady(), profile=profile)
