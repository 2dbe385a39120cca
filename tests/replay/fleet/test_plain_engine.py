"""Whole batches at a time, as the kernel takes steps, against one token after the other."""

import numpy as np
import pytest

from replay.profile import Profile
from tests.replay.fleet.build import fleet, of, profile, serve, total
from tests.replay.fleet.plain_engine import PlainEngine

ROOMY = profile(max_num_seqs=8)
TIGHT = profile(max_num_seqs=8, max_num_batched_tokens=200, kv_cache_tokens=1024)


def load(seed: int, prompts: int) -> list[tuple[float, int, int]]:
    """Bursts of requests and now and then one alone, or of odd seeds a trickle, most of them alone."""
    draw = np.random.default_rng(seed)
    gaps = draw.exponential(draw.choice([0.001, 0.02, 0.2, 3.0] if seed % 2 == 0 else [0.7, 3.0], 60))
    return [
        (float(at), int(draw.integers(1, prompts)), int(draw.choice([1, 2, 5, 30, 60])))
        for at in np.cumsum(gaps)
    ]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("engine", "prompts"), [(ROOMY, 2500), (TIGHT, 700)], ids=["roomy", "tight"])
def test_both_take_the_same_steps(engine: Profile, prompts: int, seed: int) -> None:
    requests = load(seed, prompts)
    plain = PlainEngine(engine)
    plain.run(requests)
    fast = fleet(of=engine)
    serve(fast, *requests, until=plain.now + 1.0)

    assert total(fast, "finished") == len(plain.ends) == len(requests)
    assert of(fast, "last_end") == pytest.approx(plain.now)
    assert total(fast, "preemptions") == plain.preemptions
    assert (plain.preemptions > 0) == (engine is TIGHT and seed % 2 == 0)
    assert total(fast, "ttft_sum") == pytest.approx(sum(plain.ttfts))
    assert total(fast, "itl_count") == len(plain.itls)
    assert total(fast, "itl_sum") == pytest.approx(sum(plain.itls))
    ttft_ok = sum(ttft <= 0.2 for ttft in plain.ttfts)
    assert fast.memory.windows["ttft_ok"].sum() == ttft_ok
    assert fast.memory.windows["itl_ok"].sum() == sum(itl <= 0.025 for itl in plain.itls)
