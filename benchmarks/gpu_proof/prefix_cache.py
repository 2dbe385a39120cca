"""Stage `prefix-cache`: TTFT of prompts that share most of their tokens, and of prompts that share none."""

from typing import Any

from benchmarks.gpu_proof.bench import Bench, plain
from benchmarks.gpu_proof.capacity import known_rate
from benchmarks.gpu_proof.loads import at_times, drive, figures, poisson

_TIMES, _SHARED = 2, 0.94
"""The prompts are twice as long as in other loads; of a shared one, this share is the same in all."""
_USUAL_S, _LEAST_S = 15.0, 3.0
_SHARE = 0.25
"""Of the capacity for prompts half as long, so that no request waits in a queue."""


def prefix_cache(bench: Bench) -> dict[str, Any]:
    """Send the same load twice, with prompts of which nothing is cached and with a shared system prompt."""
    url = bench.url(bench.model())
    for_s = bench.seconds(_USUAL_S, _LEAST_S)
    rate = _SHARE * known_rate(bench)
    prompt_tokens, output_tokens = _TIMES * bench.tokens[0], bench.tokens[1]
    shared_tokens = round(_SHARED * prompt_tokens)
    found: dict[str, Any] = {
        "rps": plain(rate),
        "prompt_tokens": prompt_tokens,
        "shared_tokens": shared_tokens,
    }
    for name, shared in (("nothing_shared", 0), ("shared", shared_tokens)):
        planned = at_times(poisson(rate, for_s, seed=0), prompt_tokens, output_tokens, shared)
        found[name] = figures(drive(url, planned, for_s))
    medians = [found[name]["latencies_s"]["TTFT"]["p50"] for name in ("shared", "nothing_shared")]
    found["ttft_p50_ratio"] = plain(medians[0] / medians[1])
    return found
