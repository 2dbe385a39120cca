"""Policies of peers, by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.dynamo import DynamoPlanner, Engine, Load
from benchmarks.peers.hpa import AibrixApa, HpaKeda
from benchmarks.peers.knative_kpa import Buckets, KnativeKpa
from benchmarks.peers.llmd_wva import LlmdWva, LlmdWvaTokens
from replay.policies import Sample
from tests.benchmarks.peers.build import A100_7B, drive, sample


def test_hpa_bounds_steps_up_and_delays_steps_down() -> None:
    policy = HpaKeda("ongoing", 10)
    # 100 requests are 10 replicas. From 2: max(2 * 2, 2 + 4) = 6; 15 s later max(12, 10) allows all 10.
    assert drive(policy, 30.0, 100, target=2) == [(0.0, 6), (15.0, 10)]
    # 20 requests are 2. The wish for 10 of 15 s is out of the 300 s at 315 s.
    assert drive(policy, 300.0, 20, target=10, begin=30.0) == [(315.0, 2)]


def test_hpa_tolerates_a_tenth_around_the_target() -> None:
    assert drive(HpaKeda("ongoing", 10), 15.0, 109, target=10) == []  # 1.09
    assert drive(HpaKeda("ongoing", 10), 15.0, 111, target=10) == [(0.0, 12)]  # 1.11


def test_waiting_requests_count_in_engines_and_ingress() -> None:
    policy = HpaKeda("waiting", 1)
    # 3 + 2 over 2 replicas: 2.5 a replica, so 5; what runs does not count.
    assert policy.decide(sample(0.0, running=[40, 40], waiting=[3, 2])) == 5
    assert HpaKeda("waiting", 1).decide(sample(0.0, target=3, held=6)) == 6


def test_keda_ends_and_wakes_the_last_replica() -> None:
    policy = HpaKeda("ongoing", 10)
    assert drive(policy, 75.0, 5, target=1) == []  # polls at 0, 30 and 60 s find it active
    # Idle from 75 s on; the first poll 300 s after 60 s is at 360 s. Until then HPA keeps its one.
    assert drive(policy, 300.0, 0, target=1, begin=75.0) == [(360.0, 0)]
    # Held from 375 s on; the poll is at 390 s. HPA takes over from one.
    assert drive(policy, 30.0, 50, target=0, begin=375.0) == [(390.0, 1)]


def test_request_between_two_polls_counts_as_activity() -> None:
    policy = HpaKeda("waiting", 1)
    decided = [policy.decide(sample(15.0 * n, running=[0.0], arrivals=1 + n // 10)) for n in range(100)]
    assert set(decided) == {1}


def test_apa_doubles_at_once() -> None:
    # 20 requests on 1 pod are 4 times its target of 5: 2 pods. Then 10 a pod, twice: 4. Then 5: enough.
    assert drive(AibrixApa(5), 60.0, 20, target=1) == [(0.0, 2), (10.0, 4)]


def test_apa_goes_down_to_the_highest_recent_recommendation() -> None:
    policy = AibrixApa(5)
    assert drive(policy, 10.0, 20, target=4) == []  # load 1: 4 pods recommended at 0 s
    # 8 requests from 10 s on. The mean at 10 k s is (20 + 8 k) / (k + 1), and the recommendation a fifth of
    # it, rounded up: 3 to 40 s, then 2. The 4 of 0 s is forgotten at 300 s, the last 3 at 340 s.
    assert drive(policy, 400.0, 8, target=4, begin=10.0) == [(300.0, 3), (340.0, 2)]


def test_apa_tolerates_a_tenth_around_the_target() -> None:
    assert drive(AibrixApa(5), 10.0, 21.9, target=4) == []  # 1.095
    assert drive(AibrixApa(5), 10.0, 18.1, target=4) == []  # 0.905


def test_apa_counts_starting_pods_against_every_change() -> None:
    # 2 of 4 ready with 10 requests each: load 2, so 8; but over 4 it is 20 / 5 = 4.
    assert AibrixApa(5).decide(sample(running=[10, 10], target=4)) == 4
    # 2 of 4 ready with 1 each: load 0.2, so half of 4; with 2 as if used it is ceil(0.4 + 2) = 3.
    assert AibrixApa(5).decide(sample(running=[1, 1], target=4)) == 3


def test_apa_keeps_at_least_one_pod() -> None:
    policy = AibrixApa(5)
    assert policy.decide(sample(0.0)) == 1
    assert policy.decide(sample(10.0, target=3, held=9)) == 3
    assert drive(policy, 900.0, 0, target=1, begin=20.0) == []


# Knative's KPA: a target of 5 requests is T = 3.5 a replica.


def test_panic_scales_up_at_once_and_never_down() -> None:
    policy = KnativeKpa(5)
    # ceil(28 / 3.5) = 8, at once: a window that just began is averaged over what there is. 8 / 1 >= 2: panic.
    assert drive(policy, 10.0, 28, target=1) == [(0.0, 8)]
    # 3 requests from 10 s on. The panic ends at the first tick past 0 + 60 s, 62. The stable window is then
    # 3..62: (7 * 28 + 53 * 3) / 60 = 5.92, so 2 replicas, but half of 8 at most go: 4. Two seconds later 2.
    # At 68 s one second of 28 is left, 9..68: (28 + 59 * 3) / 60 = 3.42, so 1.
    assert drive(policy, 80.0, 3, target=8, begin=10.0) == [(62.0, 4), (64.0, 2), (68.0, 1)]


def test_idle_revision_goes_to_zero_after_window_and_grace() -> None:
    # Ready since 0 s, so it may be marked inactive at 60 s; 30 s of grace.
    assert drive(KnativeKpa(5), 150.0, 0, target=1) == [(90.0, 0)]


def test_request_in_the_grace_period_keeps_the_replica() -> None:
    policy = KnativeKpa(5)
    assert drive(policy, 80.0, 0, target=1) == []
    # At 80 s 3 requests: the mean of the stable window is 3/60, and above zero. It is idle again 60 s after
    # the last of them, and inactive at 82 + 60 = 142 s: 172 s.
    assert drive(policy, 2.0, 3, target=1, begin=80.0) == []
    assert drive(policy, 120.0, 0, target=1, begin=82.0) == [(172.0, 0)]


def test_activator_wakes_the_policy_between_ticks() -> None:
    policy = KnativeKpa(5)
    assert [policy.decide(sample(at)) for at in range(7)] == [0] * 7
    assert policy.decide(sample(7.0, held=24)) == 7  # ceil(24 / 3.5)


def test_starting_replicas_without_metrics_are_kept() -> None:
    policy = KnativeKpa(5)
    asked = policy.decide(sample(0.0, held=24))
    assert {policy.decide(sample(at, target=asked)) for at in range(1, 200)} == {7}


def test_initial_fleet_is_kept_until_the_windows_are_full() -> None:
    assert drive(KnativeKpa(5), 62.0, 3, target=6) == []


def test_target_defaults_to_knatives() -> None:
    assert (KnativeKpa().name, KnativeKpa(5).name) == ("kpa", "kpa:5")
    # 70 % of 100: 100 requests are 2 replicas.
    assert drive(KnativeKpa(), 10.0, 100, target=1) == [(0.0, 2)]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=30))
def test_buckets_average_the_seconds_of_their_window(steps: list[tuple[int, int]]) -> None:
    buckets, at = Buckets(4), 0
    seen: list[tuple[int, int]] = []
    for gap, value in steps:
        at += gap
        # Four seconds of silence begin anew; a shorter silence counts as zeros.
        seen = [*(seen if gap < 4 else ()), (at, value)]
        buckets.record(at, value)

        seconds = min(at - seen[0][0] + 1, 4)
        expected = sum(value for second, value in seen if second > at - 4) / seconds
        assert buckets.mean(at) == pytest.approx(expected, abs=1e-6)
    assert buckets.mean(at + 4) == 0.0
    assert not buckets.empty(at + 4)
    assert buckets.empty(at + 5)


def fleet(at: float = 0.0, *, kv: list[float], waiting: list[float] | None = None, **rest: Any) -> Sample:
    return sample(at, running=[1.0] * len(kv), kv_usage=kv, waiting=waiting, **rest)


@pytest.mark.parametrize(
    ("kv", "waiting", "replicas"),
    [
        # Spare KV cache 0.8 - 0.75 = 0.05 is below 0.1.
        ([0.75, 0.75], [0, 0], 3),
        # The saturated one does not count: the other's 0.5 is spare enough, and alone it is never "safe".
        ([0.9, 0.3], [0, 0], 2),
        # Spare queue 5 - 2.5 = 2.5 is below 3.
        ([0.1, 0.1], [2, 3], 3),
        # Nothing is unsaturated.
        ([0.85, 0.1], [0, 5], 3),
        # 0.5 each on one of them is 1.0.
        ([0.5, 0.5], [0, 0], 2),
        # 0.3 each on one is 0.6, which leaves 0.2; no queue.
        ([0.3, 0.3], [0, 0], 1),
        # 0.35 each on one is 0.7, which leaves 0.1, just enough.
        ([0.35, 0.35], [0, 0], 1),
        # One request each on one of them is 2, which leaves 3, just enough; 1.5 is not.
        ([0.1, 0.1], [1, 1], 1),
        ([0.1, 0.1], [1, 2], 2),
    ],
)
def test_wva_steps_by_one_replica_by_spare_room(kv: list[float], waiting: list[float], replicas: int) -> None:
    assert LlmdWva().decide(fleet(kv=kv, waiting=waiting)) == replicas


def test_wva_decides_every_30_s_by_peaks_of_a_minute() -> None:
    policy = LlmdWva()
    assert policy.decide(fleet(0.0, kv=[0.5, 0.5])) == 2
    # 4 waited at 15 s: (5 + 1) / 2 = 3 are spare at 30 s, enough; 5 at 30 s saturate, and 1 is spare.
    assert policy.decide(fleet(15.0, kv=[0.5, 0.5], waiting=[0, 4])) == 2
    assert policy.decide(fleet(30.0, kv=[0.5, 0.5])) == 2
    assert policy.decide(fleet(45.0, kv=[0.5, 0.5], waiting=[5, 0])) == 2
    assert policy.decide(fleet(60.0, kv=[0.5, 0.5])) == 3
    assert policy.decide(fleet(75.0, kv=[0.5, 0.5])) == 2


def test_wva_waits_while_replicas_start_and_keeps_one() -> None:
    policy = LlmdWva()
    assert policy.decide(fleet(0.0, kv=[0.9, 0.9], target=3)) == 3
    assert LlmdWva().decide(sample(0.0, held=9)) == 1
    assert LlmdWva().decide(fleet(0.0, kv=[0.0])) == 1


def test_peaks_stay_with_their_replica() -> None:
    policy = LlmdWva()
    policy.decide(fleet(0.0, kv=[0.1, 0.9, 0.1], replicas=[0, 1, 2]))
    policy.decide(fleet(15.0, kv=[0.1, 0.1, 0.1], replicas=[0, 2, 3]))
    # 1 is gone with its peak; 0, 2 and 3 had 0.1: on two of them 0.15.
    assert policy.decide(fleet(30.0, kv=[0.1, 0.1, 0.1], replicas=[0, 2, 3])) == 2


def token_decision(policy: LlmdWvaTokens, kv: list[float], **rest: Any) -> int:
    """The decision at 30 s, when ten requests of 512 and 128 tokens have ended."""
    ended = {"finished": 10.0, "finished_prompt_tokens": 5_120.0, "finished_output_tokens": 1_280.0}
    policy.decide(fleet(0.0, kv=[0.0] * len(kv)))
    policy.decide(fleet(15.0, kv=[0.0] * len(kv)))
    return policy.decide(fleet(30.0, kv=kv, **ended, **rest))


def test_demand_beyond_the_supply_adds_replicas() -> None:
    # N = min(8192 * 128 / 640, 64) = 64, so c = 64 * (512 + 64) = 36,864, less than 80 % of 100,000.
    # D = 60,000: 60,000 / 0.85 - 36,864 = 33,724, one more.
    assert token_decision(LlmdWvaTokens(), [0.6]) == 2
    # One that starts supplies already: 70,588 - 73,728 < 0.
    assert token_decision(LlmdWvaTokens(), [0.6], target=2) == 2
    # Held requests count with what they will generate: 60,000 + 100 * 640 is 145,882, less 36,864: three.
    assert token_decision(LlmdWvaTokens(), [0.6], held=100) == 4


def test_supply_beyond_the_demand_removes_replicas() -> None:
    # D = 4 * 5,000; (4 * 36,864 - 20,000 / 0.7) / 36,864 = 3.2.
    assert token_decision(LlmdWvaTokens(), [0.05] * 4) == 1
    # D = 4 * 15,000: 60,000 / 0.7 = 85,714 of 147,456: 1.7.
    assert token_decision(LlmdWvaTokens(), [0.15] * 4) == 3


def test_queue_shows_the_compute_capacity_of_a_replica() -> None:
    policy = LlmdWvaTokens()
    # 5 wait at 30,000 tokens: c = 30,000. D = 30,000 + 5 * 512 = 32,560; / 0.85 - 30,000 = 8,306: one more.
    assert token_decision(policy, [0.3], waiting=[5]) == 2
    # It is remembered when the peak of the queue is over: D = 24,000 / 0.85 < 30,000.
    ended = {"finished": 10.0, "finished_prompt_tokens": 5_120.0, "finished_output_tokens": 1_280.0}
    for at in (45.0, 60.0, 75.0):
        policy.decide(fleet(at, kv=[0.24], **ended))
    assert policy.decide(fleet(90.0, kv=[0.24], **ended)) == 1


def test_one_replica_is_kept_without_requests() -> None:
    policy = LlmdWvaTokens()
    assert policy.decide(sample(0.0, held=5)) == 1
    assert [policy.decide(sample(15.0 * n, target=1, held=5)) for n in range(1, 5)] == [1] * 4
    assert policy.decide(fleet(75.0, kv=[0.0])) == 1
    assert policy.name == "wva:2"


LOAD = Load(512.0, 128.0, 512.0)
ENGINE = Engine(A100_7B, 64, 8192)


# Dynamo's planner: requests of 512 and 128 tokens, on an engine whose step takes 11.5 ms + 0.12 ms a sequence
# + 0.12 us a KV token + 50 us a prefill token. With a steady batch b, b * 576 tokens are in the KV cache and
# 4 b are prefilled a step, which takes 11.5 ms + b * (0.12 + 0.06912 + 0.2) ms.


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
