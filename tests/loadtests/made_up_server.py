"""A server of known behaviour: when its replicas come, its first tokens, the gaps between tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.record import Record

MODEL = "tideserve-tiny"
PHASES = (
    ("imports", 1.4),
    ("configuration", 7.1),
    ("weights_and_kv_cache", 8.0),
    ("serving_layer", 17.2),
    ("warm_up", 18.6),
)
"""What a held stream is told: the phase of the replica nearest to readiness, by seconds since the burst."""


@dataclass(frozen=True)
class Behaviour:
    """How a made-up server answers. Seconds."""

    ttft_s: float = 0.062
    ttft_sigma: float = 0.35
    """Of the logarithm."""
    itl_s: float = 0.009
    itl_sigma: float = 0.18
    tokens: tuple[int, int] = (24, 160)
    slower: float = 1.0
    """Factor on both."""
    swing: float = 0.12
    """Standard deviation of a load that changes both, as a share of them."""
    memory_s: float = 4.0
    """After so long the load has forgotten all but 1/e of itself: requests close in time are alike."""


def answers(
    rng: np.random.Generator,
    at_s: Sequence[float],
    behaviour: Behaviour,
    first: int = 0,
    *,
    ready_s: Sequence[float] = (),
    kind: str = "chat",
    model: str = MODEL,
) -> list[Record]:
    """Answer each request whole, as `behaviour` says; replicas come at `ready_s`."""
    out = []
    load_at = _load(rng, max(at_s, default=0.0), behaviour)
    for place, at in enumerate(at_s):
        load = behaviour.slower * load_at[int(at)]
        released = ready_s[place % len(ready_s)] + 0.011 * (place // len(ready_s)) if ready_s else at
        waited = max(0.0, released - at)
        tokens = int(rng.integers(behaviour.tokens[0], behaviour.tokens[1] + 1))
        ttft = behaviour.ttft_s * load * float(np.exp(rng.normal(0, behaviour.ttft_sigma)))
        gaps = behaviour.itl_s * load * np.exp(rng.normal(0, behaviour.itl_sigma, tokens - 1))
        gaps[rng.random(tokens - 1) < 0.01] *= 2.2
        pieces = at + waited + ttft + np.concatenate(([0.0], np.cumsum(gaps)))
        sent = float(at) + float(rng.exponential(0.0006))
        out.append(
            Record(
                index=first + place,
                kind=kind,
                model=model,
                at_s=float(at),
                sent_s=sent,
                ended_s=float(pieces[-1]) + 0.0012,
                outcome="answered",
                status=200,
                pieces_s=tuple(np.round(pieces, 6).tolist()),
                planned_prompt_tokens=64,
                planned_output_tokens=tokens,
                prompt_tokens=64,
                output_tokens=tokens,
                cached_tokens=32 if place % 3 else 0,
                cold_wait_s=round(waited, 3),
                phases=_told(float(at), released) if waited > 0.5 else (),
            )
        )
    return out


def _load(rng: np.random.Generator, until_s: float, behaviour: Behaviour) -> list[float]:
    """By second, an autoregressive load around 1."""
    kept = float(np.exp(-1 / behaviour.memory_s))
    shocks = rng.normal(0, behaviour.swing, int(until_s) + 1)
    out = [float(shocks[0])]
    for shock in shocks[1:].tolist():
        out.append(kept * out[-1] + (1 - kept**2) ** 0.5 * shock)
    return [float(np.exp(one)) for one in out]


def _told(at: float, released: float) -> tuple[tuple[float, str], ...]:
    return tuple((at + after, phase) for phase, after in PHASES if at + after < released)


def arrivals(rng: np.random.Generator, start_s: float, for_s: float, rate: float) -> list[float]:
    """A Poisson process."""
    count = int(rng.poisson(rate * for_s))
    times: list[float] = np.round(np.sort(rng.uniform(start_s, start_s + for_s, count)), 4).tolist()
    return times
