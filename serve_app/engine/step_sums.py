"""What the engine's steps of one report interval took and carried, as means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class StepMeans:
    """Means over `steps` engine steps; zeros if there were none."""

    steps: int = 0
    step_s: float = 0.0
    batch: float = 0.0
    """Sequences that decoded."""
    prefill_tokens: float = 0.0
    kv_tokens: float = 0.0


class StepSums:
    """Adds steps up until somebody takes their means."""

    __slots__ = ("_batch", "_kv_tokens", "_prefill_tokens", "_step_s", "_steps")

    def __init__(self) -> None:
        self._clear()

    def add(self, step_s: float, batch: int, prefill_tokens: int, kv_tokens: float) -> None:
        """Count one step."""
        self._steps += 1
        self._step_s += step_s
        self._batch += batch
        self._prefill_tokens += prefill_tokens
        self._kv_tokens += kv_tokens

    def take(self) -> StepMeans:
        """The means since the last call; begins anew."""
        steps = self._steps
        if not steps:
            return StepMeans()
        means = StepMeans(
            steps,
            self._step_s / steps,
            self._batch / steps,
            self._prefill_tokens / steps,
            self._kv_tokens / steps,
        )
        self._clear()
        return means

    def _clear(self) -> None:
        self._steps = 0
        self._step_s = 0.0
        self._batch = 0
        self._prefill_tokens = 0
        self._kv_tokens = 0.0


def step_seconds(
    inter_token_s: Sequence[float], since_last_s: float | None, prefill_s: float | None, elapsed_ms: float
) -> float:
    """How long a step took.

    vLLM's own `elapsed_ms` is only the engine core's wait for the result. It is too short where steps
    overlap (asynchronous scheduling), and next to nothing where the model runs in the core's process. So
    it comes last.

    Args:
        inter_token_s: Inter-token latencies of the sequences that decoded, by the core's own clock: what
            the step added to each stream. The median, because one that was preempted has waited longer.
        since_last_s: Time since the result of the step before, if the engine had work all along.
        prefill_s: The shortest prefill that ended with this step. After a pause, that is the step.
        elapsed_ms: vLLM's figure: all there is of the first of several prefill steps after a pause.
    """
    if inter_token_s:
        return median(inter_token_s)
    if since_last_s is not None:
        return since_last_s
    return elapsed_ms / 1e3 if prefill_s is None else prefill_s
