"""llm-d's WVA, both analyzers, by hand."""

from typing import Any

import pytest

from benchmarks.peers.llmd_wva import LlmdWva, LlmdWvaTokens
from replay.policies import Sample
from tests.benchmarks.peers.build import sample


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


def tokens(policy: LlmdWvaTokens, kv: list[float], **rest: Any) -> int:
    """The decision at 30 s, when ten requests of 512 and 128 tokens have ended."""
    ended = {"finished": 10.0, "finished_prompt_tokens": 5_120.0, "finished_output_tokens": 1_280.0}
    policy.decide(fleet(0.0, kv=[0.0] * len(kv)))
    policy.decide(fleet(15.0, kv=[0.0] * len(kv)))
    return policy.decide(fleet(30.0, kv=kv, **ended, **rest))


def test_demand_beyond_the_supply_adds_replicas() -> None:
    # N = min(8192 * 128 / 640, 64) = 64, so c = 64 * (512 + 64) = 36,864, less than 80 % of 100,000.
    # D = 60,000: 60,000 / 0.85 - 36,864 = 33,724, one more.
    assert tokens(LlmdWvaTokens(), [0.6]) == 2
    # One that starts supplies already: 70,588 - 73,728 < 0.
    assert tokens(LlmdWvaTokens(), [0.6], target=2) == 2
    # Held requests count with what they will generate: 60,000 + 100 * 640 is 145,882, less 36,864: three.
    assert tokens(LlmdWvaTokens(), [0.6], held=100) == 4


def test_supply_beyond_the_demand_removes_replicas() -> None:
    # D = 4 * 5,000; (4 * 36,864 - 20,000 / 0.7) / 36,864 = 3.2.
    assert tokens(LlmdWvaTokens(), [0.05] * 4) == 1
    # D = 4 * 15,000: 60,000 / 0.7 = 85,714 of 147,456: 1.7.
    assert tokens(LlmdWvaTokens(), [0.15] * 4) == 3


def test_queue_shows_the_compute_capacity_of_a_replica() -> None:
    policy = LlmdWvaTokens()
    # 5 wait at 30,000 tokens: c = 30,000. D = 30,000 + 5 * 512 = 32,560; / 0.85 - 30,000 = 8,306: one more.
    assert tokens(policy, [0.3], waiting=[5]) == 2
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
