"""What prompts find of each other in a replica's prefix cache: blocks of 100 tokens."""

import pytest

from tests.replay.fleet.build import fleet, of, profile, serve, total


def cached(made_slot: int, made: object) -> list[int]:
    """The blocks in a replica's cache, the one to be evicted first."""
    memory = made.memory  # type: ignore[attr-defined]
    return [
        int(block) for block in memory.cache[made_slot, : int(memory.replicas["cached_blocks"][made_slot])]
    ]


def test_a_prefix_seen_before_is_not_computed_again() -> None:
    made = fleet(block_tokens=100)
    serve(made, (0.0, 350, 1), (1.0, 350, 1), until=2.0, blocks=[[1, 2, 3], [1, 2, 9]])

    # 0.010 + 350 * 0.0001, then two blocks less: 0.010 + 150 * 0.0001.
    assert total(made, "ttft_sum") == pytest.approx(0.045 + 0.025)
    assert of(made, "prefilled") == 350 + 150


def test_the_last_token_is_always_computed() -> None:
    made = fleet(block_tokens=100)
    serve(made, (0.0, 300, 1), (1.0, 300, 1), until=2.0, blocks=[[1, 2, 3], [1, 2, 3]])

    assert of(made, "prefilled") == 300 + 1


def test_each_replica_has_its_own_prefix_cache() -> None:
    made = fleet(2, block_tokens=100)
    # The second arrives while the first replica is busy.
    serve(made, (0.0, 300, 1), (0.001, 300, 1), until=1.0, blocks=[[1, 2, 3], [1, 2, 3]])
    assert [of(made, "prefilled", slot) for slot in (0, 1)] == [300, 300]

    made.set_target(1)
    made.set_target(2)
    made.advance(12.0)
    made.settle()
    assert (cached(0, made), cached(1, made)) == ([3, 2, 1], [])


def test_cache_evicts_the_longest_unused_block() -> None:
    # A cache of 1,024 // 100 = 10 blocks.
    made = fleet(of=profile(kv_cache_tokens=1024), block_tokens=100)
    serve(made, (0.0, 400, 1), (1.0, 500, 1), until=2.0, blocks=[[1, 2, 3, 4], [5, 6, 7, 8, 9]])
    assert cached(0, made) == [4, 3, 2, 1, 9, 8, 7, 6, 5]

    # The tenth block fills the cache, and nothing but blocks of prompts is in it.
    serve(made, (2.0, 100, 1), until=3.0, blocks=[[10]])
    assert cached(0, made) == [4, 3, 2, 1, 9, 8, 7, 6, 5, 10]

    # Of the first prompt the last two blocks have gone; what is left of it is found, and now used last.
    serve(made, (3.0, 200, 1), (4.0, 400, 1), until=5.0, blocks=[[11, 12], [1, 2, 3, 4]])
    assert cached(0, made) == [7, 6, 5, 10, 12, 11, 4, 3, 2, 1]
    assert of(made, "prefilled") == 400 + 500 + 100 + 200 + 200
