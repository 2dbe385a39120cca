"""Small fleets with round numbers, and requests for them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from replay.fleet.conditions import Conditions
from replay.fleet.fleet import Fleet
from replay.profile import Profile
from serve_app.settings.caller import LANES, Lane
from traces.trace import Chunk

BASE, SEQUENCE, KV, PREFILL = 0.010, 0.001, 0.000_01, 0.000_1
"""Seconds: a step, each sequence that decodes in it, each token of theirs, each prompt token."""


def profile(**changed: Any) -> Profile:
    """A replica of four sequences, 1,000 tokens a step and a KV cache of 20,000."""
    fields = {
        "name": "round",
        "source": "made up",
        "gpu": "none",
        "step_base_s": BASE,
        "step_per_sequence_s": SEQUENCE,
        "step_per_kv_token_s": KV,
        "step_per_prefill_token_s": PREFILL,
        "kv_cache_tokens": 20_000,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 1000,
        "cold_start_s": (10.0, 20.0),
        **changed,
    }
    return Profile.model_validate(fields)


ENGINES = profile(
    max_num_seqs=32,
    max_num_batched_tokens=4000,
    kv_cache_tokens=100_000,
    step_per_sequence_s=0.0002,
    step_per_kv_token_s=2e-7,
    step_per_prefill_token_s=5e-5,
)
"""Replicas for the production policy: 32 sequences, with the step time of a large GPU."""


def conditions(**changed: Any) -> Conditions:
    """Bodies of exactly 4.4 bytes a token; cold starts of 10 s."""
    fields = {"cold_start_s": (10.0, 10.0), "body_noise": 0.0, "ttft_target_s": 0.2, **changed}
    return Conditions(itl_target_s=0.025, **fields)


def fleet(replicas: int = 1, *, of: Profile | None = None, block_tokens: int = 0, **changed: Any) -> Fleet:
    """So many ready replicas."""
    made = Fleet(of or profile(), conditions(block_tokens=block_tokens, **changed), expected_replicas=4)
    made.warm(replicas)
    return made


def chunk(
    *requests: tuple[float, int, int],
    blocks: Sequence[Sequence[int]] = (),
    lanes: Sequence[Lane] = (),
    adapters: Sequence[int] = (),
) -> Chunk:
    """Requests as (arrival, prompt tokens, answer tokens), and the blocks, lane and adapter of each."""
    columns = zip(*requests, strict=True)
    arrivals, prompts, outputs = (np.array(column) for column in columns)
    return Chunk(
        arrivals.astype(np.float64),
        prompts.astype(np.int64),
        outputs.astype(np.int64),
        np.cumsum([0, *map(len, blocks)], dtype=np.int64) if blocks else np.empty(0, dtype=np.int64),
        np.array([block for each in blocks for block in each], dtype=np.int64),
        np.array([LANES.index(lane) for lane in lanes], dtype=np.int64),
        np.array(adapters, dtype=np.int64),
    )


def serve(
    made: Fleet,
    *requests: tuple[float, int, int],
    until: float,
    blocks: Sequence[Sequence[int]] = (),
    lanes: Sequence[Lane] = (),
    adapters: Sequence[int] = (),
) -> None:
    """Let the requests that arrive before `until` arrive, and time pass until then."""
    asked = chunk(*requests, blocks=blocks, lanes=lanes, adapters=adapters) if requests else None
    taken = 0 if asked is None else made.take(asked, 0, until)
    assert taken == len(requests), "the last ones arrive later"
    made.advance(until)


def total(made: Fleet, name: str) -> float:
    """One of the fleet's totals."""
    return float(made.memory.totals[name][0])


def of(made: Fleet, name: str, slot: int = 0) -> float:
    """A field of one replica."""
    return float(made.memory.replicas[name][slot])


def fields(made: Fleet, name: str) -> list[float]:
    """A field of every replica that is ready or draining, in the order of their slots."""
    return [float(made.memory.replicas[name][slot]) for slot in sorted(made.names)]
