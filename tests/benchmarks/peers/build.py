"""Samples for tests, with only what a test is about spelled out, and a fleet that obeys."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from replay.policies import Autoscaler, Sample
from serve_app.policy.capacity_model import StepTime

A100_7B = StepTime(0.0115, 0.00012, 0.12e-6, 1 / 20_000)


def sample(
    at: float = 0.0,
    *,
    running: Sequence[float] = (),
    waiting: Sequence[float] | None = None,
    kv_usage: Sequence[float] | None = None,
    target: int | None = None,
    held: int = 0,
    replicas: Sequence[int] | None = None,
    **totals: Any,
) -> Sample:
    """A fleet with as many ready replicas as `running` has elements, and no other load unless given."""
    ready = len(running)
    known = {
        "kv_cache_tokens": 100_000.0,
        "arrivals": 0.0,
        "arrived_tokens": 0.0,
        "first_tokens": 0.0,
        "ttft_sum_s": 0.0,
        "finished": 0.0,
        "finished_prompt_tokens": 0.0,
        "finished_output_tokens": 0.0,
        "itl_count": 0.0,
        "itl_sum_s": 0.0,
    }
    return Sample(
        at=at,
        target=ready if target is None else target,
        ready=ready,
        held=held,
        running=np.array(running, dtype=np.float64),
        waiting=np.zeros(ready) if waiting is None else np.array(waiting, dtype=np.float64),
        kv_usage=np.zeros(ready) if kv_usage is None else np.array(kv_usage, dtype=np.float64),
        replicas=np.array(range(ready) if replicas is None else replicas, dtype=np.int64),
        **{**known, **totals},
    )


def spread(requests: float, replicas: int) -> list[float]:
    """`requests` evenly over `replicas`: whole ones, and what is left of one on the first."""
    whole, rest = divmod(requests, replicas)
    return [whole + min(max(rest - place, 0.0), 1.0) for place in range(replicas)]


def drive(
    policy: Autoscaler, seconds: float, requests: float, *, target: int, begin: float = 0.0
) -> list[tuple[float, int]]:
    """Have `policy` steer a fleet that is always as large as it asks for. Returns its changes of the target.

    Args:
        policy: Asked at each of its turns in [begin, begin + seconds).
        seconds: How long.
        requests: Running at every moment, evenly over the replicas; queued while no replica is ready.
        target: Replicas at the start.
        begin: Seconds since the start of the first turn.
    """
    changes = []
    for turn in range(round(seconds / policy.interval_s)):
        at = round(begin + turn * policy.interval_s, 6)
        seen = sample(
            at,
            running=spread(requests, target) if target else (),
            held=0 if target else int(requests),
            arrivals=requests * at,
        )
        wish = policy.decide(seen)
        if wish != target:
            changes.append((at, wish))
            target = wish
    return changes
