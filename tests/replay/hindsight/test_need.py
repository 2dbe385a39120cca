import numpy as np
import pytest

from replay.defaults import KNOBS
from replay.hindsight.need import read_need
from replay.scenario import scenario
from serve_app.policy.capacity_model import Mix, capacity_rps
from tests.replay.traffic import steady
from traces import ArrayTrace
from traces.trace import Chunk


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
