"""The replicas that the requests of each slot of time need, by the whole trace without `background`."""

from dataclasses import dataclass

import numpy as np

from replay.fleet.layout import WINDOW_S
from replay.scenario import Scenario
from serve_app.policy.capacity_model import Mix, capacity_rps, feasibility
from traces.trace import Chunk, Floats, Ints, without_background

_BATCH = 8.0
"""Sequences of a usual batch, for the length of a drain."""


@dataclass(frozen=True, slots=True)
class Need:
    """The load of every slot of time, in replicas that `capacity_rps` would load fully."""

    slot_s: float
    """Seconds of a slot; a minute is a whole number of them."""
    replicas: Floats
    """For each slot, arrivals per second over the rate at which it serves the minute's mean request."""
    window: Ints
    """For each slot, its one-minute window."""
    requests: Floats
    """The requests of each window."""
    lost: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """Whether so many prompts of a window are too long for the TTFT target that no fleet attains it."""
    drain_s: float
    """Seconds to answer a usual request, which is the cost of stopping a replica."""


class _Sums:
    """Sums by index; indices may come in any order and grow."""

    def __init__(self) -> None:
        self._values: Floats = np.zeros(1024)
        self._count = 0

    def add(self, index: Ints, weights: Floats | Ints | None = None) -> None:
        first, end = int(index[0]), int(index[-1]) + 1
        while end > len(self._values):
            self._values = np.concatenate([self._values, np.zeros(len(self._values))])
        self._values[first:end] += np.bincount(index - first, weights, minlength=end - first)
        self._count = max(self._count, end)

    def values(self) -> Floats:
        return self._values[: self._count]


def read_need(scenario: Scenario, slot_s: float) -> Need:
    """Read the trace once. Raises TraceError for a line of the trace that is no request."""
    arrivals, requests, prompts, outputs, too_long = (_Sums() for _ in range(5))
    for chunk in filter(len, map(without_background, scenario.trace.chunks())):
        window = (chunk.arrival_s / WINDOW_S).astype(np.int64)
        arrivals.add((chunk.arrival_s / slot_s).astype(np.int64))
        requests.add(window)
        prompts.add(window, chunk.input_tokens)
        outputs.add(window, chunk.output_tokens)
        too_long.add(window, _too_long(scenario, chunk))
    counts = requests.values()
    mean_prompt = prompts.values() / np.maximum(counts, 1.0)
    mean_output = outputs.values() / np.maximum(counts, 1.0)
    carries = np.array(
        [
            _carries(scenario, Mix(prompt_tokens=prompt, output_tokens=output)) if count else 1.0
            for count, prompt, output in zip(
                counts.tolist(), mean_prompt.tolist(), mean_output.tolist(), strict=True
            )
        ]
    )
    by_slot = arrivals.values()
    slots = np.arange(len(by_slot))
    window_of = np.minimum((slots * slot_s / WINDOW_S).astype(np.int64), len(counts) - 1)
    misses = 1.0 - scenario.knobs.ttft_percentile / 100.0
    mean_request = float(outputs.values().sum() / counts.sum())
    context = float(prompts.values().sum() / counts.sum()) + mean_request / 2
    return Need(
        slot_s,
        by_slot / slot_s / carries[window_of],
        window_of,
        counts,
        too_long.values() > misses * counts,
        mean_request * scenario.profile.step.decode_s(_BATCH, _BATCH * context),
    )


def _too_long(scenario: Scenario, chunk: Chunk) -> Floats:
    """1 for each prompt whose prefill by itself misses the TTFT target, as in the kernel."""
    if scenario.trace.block_tokens:  # it may be cached
        return np.zeros(len(chunk))
    profile = scenario.profile
    steps = np.ceil(chunk.input_tokens / profile.max_num_batched_tokens)
    alone = steps * profile.step_base_s + profile.step_per_prefill_token_s * chunk.input_tokens
    return np.asarray((alone > scenario.knobs.ttft_target_s).astype(np.float64))


def _carries(scenario: Scenario, mix: Mix) -> float:
    profile, knobs = scenario.profile, scenario.knobs
    alone = feasibility(profile.step, mix, knobs)
    # No fleet meets a lost target, so it does not count.
    lost = ({} if alone.ttft else {"ttft_target_s": 3600.0}) | ({} if alone.itl else {"itl_target_s": 60.0})
    return capacity_rps(profile.step, mix, knobs.model_copy(update=lost), float(profile.kv_cache_tokens))
