"""LoRA adapters of the simulated engines: what a load costs, and which adapters stay loaded."""

import numpy as np
import pytest

from replay.fleet.fleet import Fleet
from tests.replay.fleet.build import BASE, PREFILL, fields, fleet, profile, serve, total


def loaded(made: Fleet, slot: int = 0) -> list[int]:
    """The adapters that a replica has loaded."""
    return list(np.flatnonzero(made.memory.adapters["loaded"][slot]))


def ttft_s(made: Fleet) -> float:
    return total(made, "ttft_sum") / total(made, "first_tokens")


def test_a_missing_adapter_delays_the_first_token_by_its_load() -> None:
    made = fleet(of=profile(adapter_load_s=0.3))
    serve(made, (0.0, 100, 1), until=1.0, adapters=[7])
    assert ttft_s(made) == pytest.approx(0.3 + BASE + 100 * PREFILL)

    serve(made, (1.0, 100, 1), until=2.0, adapters=[7])
    assert total(made, "ttft_sum") == pytest.approx(0.3 + 2 * (BASE + 100 * PREFILL))
    assert (total(made, "adapter_hits"), total(made, "adapter_requests")) == (1, 2)


def test_a_load_delays_the_streams_of_its_engine() -> None:
    ends = []
    for adapter in (0, 7):
        made = fleet(of=profile(adapter_load_s=0.3))
        serve(made, (0.0, 10, 50), (0.1, 10, 1), until=5.0, adapters=[0, adapter])
        assert total(made, "finished") == 2
        ends.append(float(made.memory.replicas["last_end"][0]))

    assert ends[1] - ends[0] == pytest.approx(0.3)


def test_the_adapter_with_the_fewest_uses_gives_its_place() -> None:
    made = fleet(of=profile(max_cached_adapters=2, adapter_load_s=0.01))
    for number, adapter in enumerate([1, 1, 2, 1, 3]):
        serve(made, (1.0 * number, 10, 1), until=1.0 * number + 0.9, adapters=[adapter])

    assert loaded(made) == [1, 3]


def test_adapters_in_use_stay_beyond_the_bound() -> None:
    made = fleet(of=profile(max_cached_adapters=2, adapter_load_s=0.01))
    serve(made, *[(0.0, 10, 500)] * 3, until=1.0, adapters=[1, 2, 3])
    assert loaded(made) == [1, 2, 3]

    made.advance(60.0)
    serve(made, (60.0, 10, 1), until=61.0, adapters=[4])
    assert loaded(made)[-1] == 4
    assert len(loaded(made)) == 2


def test_a_rare_adapter_stays_on_its_replica() -> None:
    made = fleet(2, of=profile(adapter_load_s=0.3))
    for number in range(6):
        serve(made, (5.0 * number, 100, 1), until=5.0 * number + 4.0, adapters=[7])

    assert total(made, "adapter_hits") == 5
    assert sorted(fields(made, "finished")) == [0, 6]
