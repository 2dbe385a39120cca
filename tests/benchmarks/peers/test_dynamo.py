"""Dynamo's planner, by hand.

Requests of 512 and 128 tokens, on an engine whose step takes 11.5 ms + 0.12 ms a sequence + 0.12 us a KV
token + 50 us a prefill token. With a steady batch b, b * 576 tokens are in the KV cache and 4 b are prefilled
a step, which takes 11.5 ms + b * (0.12 + 0.06912 + 0.2) ms.
"""

from typing import Any

import pytest

from benchmarks.peers.dynamo import DynamoPlanner, Engine, Load
from replay.policies import Sample
from tests.benchmarks.peers.build import A100_7B, sample

LOAD = Load(512.0, 128.0, 512.0)
ENGINE = Engine(A100_7B, 64, 8192)


def traffic(at: float, rps: float, replicas: int, *, itl_s: float = 0.0, **rest: Any) -> Sample:
    """`rps` have come, and gone, since 0 s."""
    count = rps * at
    return sample(
        at,
        running=rest.pop("running", [0.0] * replicas),
        arrivals=count,
        arrived_tokens=512.0 * count,
        finished=count,
        finished_prompt_tokens=512.0 * count,
        finished_output_tokens=128.0 * count,
        itl_count=count if itl_s else 0.0,
        itl_sum_s=itl_s * count,
        **rest,
    )


def floor(planner: DynamoPlanner, rps: float, replicas: int, until: float = 180.0, **rest: Any) -> int:
    """Replicas that are left when nothing is running that would need them."""
    at = 0.0
    while at <= until + 5.0 * replicas:
        replicas = planner.decide(traffic(at, rps, replicas, **rest))
        at += 5.0
    return replicas


def test_engine_rate_uses_the_largest_batch_within_targets() -> None:
    # 50 ms allow 98 sequences, the engine 64: 64 / (128 * 36.40 ms) = 13.73/s.
    assert ENGINE.best_rps(LOAD, 1e6, 0.5, 0.050) == pytest.approx(64 / (128 * 0.0364037), rel=1e-4)
    # 15 ms allow 8: 8 / (128 * 14.61 ms) = 4.28/s.
    assert ENGINE.best_rps(LOAD, 1e6, 0.15, 0.015) == pytest.approx(8 / (128 * 0.01461296), rel=1e-4)
    # TTFT with a batch b: 11.5 + 0.18912 b ms for the step, and 512 + 4 b tokens: 50 ms allow 33.
    # 37.1 + 0.38912 b <= 50.
    assert ENGINE.best_rps(LOAD, 1e6, 0.050, 0.050) == pytest.approx(33 / (128 * 0.02434096), rel=1e-4)
    # A KV cache of 5,760 tokens holds 10.
    assert ENGINE.best_rps(LOAD, 5760, 0.5, 0.050) == pytest.approx(10 / (128 * 0.0153912), rel=1e-4)


def test_unreachable_targets_give_a_batch_of_one() -> None:
    assert ENGINE.best_rps(LOAD, 1e6, 0.5, 0.001) == pytest.approx(1 / (128 * 0.01188912), rel=1e-4)


def test_floor_is_demand_over_the_rate_of_an_engine() -> None:
    # 30 / 13.73 = 2.2, and 30 / 4.28 = 7.01.
    planner = DynamoPlanner(A100_7B)
    assert [planner.decide(traffic(at, 30.0, 1)) for at in (0.0, 5.0, 175.0, 180.0)] == [1, 1, 1, 3]
    tight = DynamoPlanner(A100_7B, itl_s=0.015, ttft_s=0.15, interval_s=60.0)
    assert [tight.decide(traffic(at, 30.0, 1)) for at in (0.0, 55.0, 60.0)] == [1, 1, 8]


def test_measured_itl_above_the_expected_lowers_its_target() -> None:
    # 25/s on 5 engines with an ITL of 40 ms: 5.12 s each, 25.6 at a time, for which 21.46 ms are expected.
    # So 50 ms become 50 / 1.864 = 26.8 ms, which allow 39: 39 / (128 * 26.68 ms) = 11.4/s. 25 / 11.4 = 2.2.
    assert floor(DynamoPlanner(A100_7B), 25.0, 5, itl_s=0.040) == 3
    assert floor(DynamoPlanner(A100_7B), 25.0, 5) == 2


def loaded(at: float, waiting: list[float], running: list[float], kv: list[float], **rest: Any) -> Sample:
    return traffic(at, 1.0, len(running), running=running, waiting=waiting, kv_usage=kv, **rest)


@pytest.mark.parametrize(
    ("waiting", "running", "kv", "replicas"),
    [
        # 20 prompts wait: 21 * 512 / 20,000 = 0.538 s, everywhere.
        ([20, 20], [1, 1], [0.01, 0.01], 3),
        # Not everywhere, but too much for one.
        ([20, 0], [1, 1], [0.01, 0.01], 2),
        # 100,000 KV tokens are 12 ms, a batch of 220 is 26 ms, and 880 prefill tokens: all above 50 ms.
        ([0, 0], [220, 220], [1.0, 1.0], 3),
        # Idle: one is enough.
        ([0, 0], [0, 0], [0.0, 0.0], 1),
        # 0.3 of the cache each fits one engine at 23 ms; 0.55 does not.
        ([0, 0], [10, 10], [0.3, 0.3], 1),
        ([0, 0], [10, 10], [0.55, 0.55], 2),
        # 6 prompts wait each, 0.31 s for one engine, of (0.5 - 0.038) * 0.8 = 0.37 s; 8 are 0.41 s.
        ([6, 6], [1, 1], [0.01, 0.01], 1),
        ([8, 8], [1, 1], [0.01, 0.01], 2),
    ],
)
def test_load_loop_steps_by_one_engine(
    waiting: list[float], running: list[float], kv: list[float], replicas: int
) -> None:
    planner = DynamoPlanner(A100_7B)
    for at in (0.0, 180.0):
        planner.decide(traffic(at, 1.0, 2))
    assert planner.decide(loaded(185.0, waiting, running, kv)) == replicas


def test_planner_waits_while_replicas_start_and_keeps_one() -> None:
    planner = DynamoPlanner(A100_7B)
    for at in (0.0, 180.0):
        planner.decide(traffic(at, 1.0, 2))
    assert planner.decide(loaded(185.0, [50, 50], [1, 1], [0.1, 0.1], target=3)) == 3
    assert planner.decide(sample(190.0, held=9)) == 1


def test_without_traffic_nothing_is_changed() -> None:
    planner = DynamoPlanner(A100_7B)
    assert [planner.decide(sample(5.0 * n, running=[0, 0])) for n in range(100)] == [2] * 100


def test_name_shows_settings_that_differ_from_the_defaults() -> None:
    assert DynamoPlanner(A100_7B).name == "dynamo"
    assert DynamoPlanner(A100_7B, interval_s=60, itl_s=0.015).name == "dynamo:itl=0.015,interval=60"
