"""Made-up traffic of plain shapes, as traces: Poisson arrivals at rates that change in steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traces.trace import ArrayTrace, Floats, Ints, Trace


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal tokens of prompts and answers, cut at a most; medians near those of recorded chats."""

    prompt_median: float = 800.0
    prompt_sigma: float = 0.8
    most_prompt: int = 3_500
    """An A100 prefills 20,000 tokens a second after 11.5 ms, so 3,770 within a TTFT target of 200 ms."""
    output_median: float = 150.0
    output_sigma: float = 0.7
    most_output: int = 1_000

    def draw(self, random: np.random.Generator, count: int) -> tuple[Ints, Ints]:
        """Prompt and answer tokens of `count` requests."""
        prompts = self.prompt_median * np.exp(self.prompt_sigma * random.standard_normal(count))
        outputs = self.output_median * np.exp(self.output_sigma * random.standard_normal(count))
        return _whole(prompts, self.most_prompt), _whole(outputs, self.most_output)


def poisson(
    name: str, stretches: Sequence[tuple[float, float]], *, lengths: Lengths | None = None, seed: int = 0
) -> ArrayTrace:
    """Poisson arrivals at (requests per second, seconds) of each of `stretches`, one after another.

    Raises TraceError if no request arrives. Equal seeds give equal traces.
    """
    random = np.random.default_rng(seed)
    began_s, parts = 0.0, []
    for rate, for_s in stretches:
        parts.append(began_s + np.sort(random.uniform(0.0, for_s, random.poisson(rate * for_s))))
        began_s += for_s
    arrival_s = np.concatenate([np.empty(0), *parts])
    return ArrayTrace(name, arrival_s, *(lengths or Lengths()).draw(random, len(arrival_s)))


def square_wave(low: float, high: float, half_period_s: float, for_s: float) -> list[tuple[float, float]]:
    """Stretches for `poisson`: `low` and `high` requests per second in turns, from `low`."""
    halves = round(for_s / half_period_s)
    return [(high if number % 2 else low, half_period_s) for number in range(halves)]


def with_growing_prompts(trace: Trace, factor: float, from_s: float, over_s: float) -> ArrayTrace:
    """The same requests with prompts that grow to their lengths in `trace`, without prefix blocks.

    Until `from_s` they are `factor` times shorter. In the `over_s` seconds after it they grow by the same
    share each second.

    Raises TraceError as reading `trace` does.
    """
    chunks = list(trace.chunks())
    arrival_s = np.concatenate([chunk.arrival_s for chunk in chunks])
    prompts = np.concatenate([chunk.input_tokens for chunk in chunks])
    outputs = np.concatenate([chunk.output_tokens for chunk in chunks])
    grown = np.clip((arrival_s - from_s) / over_s, 0.0, 1.0)
    most = int(prompts.max(initial=1))
    return ArrayTrace(trace.name, arrival_s, _whole(prompts * factor ** (grown - 1.0), most), outputs)


def _whole(tokens: Floats, most: int) -> Ints:
    return np.clip(np.rint(tokens), 1, most).astype(np.int64)
