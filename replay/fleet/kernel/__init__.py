"""The compiled part of the replay: every engine step of every replica, and the way of every request.

An engine step is vLLM's: the running requests go first, each decoding sequence with one token and each
prompt under way with a chunk; then, unless a request was preempted, waiting requests are admitted while the
batch, the step's token budget and the KV cache have room, the latter for the whole prompt. A step takes

    base + per_sequence * decodes + per_kv_token * their tokens + per_prefill_token * prompt tokens

seconds, or what the roofline of `step_time` says, and its tokens come at its end. Where the KV cache is
full the request admitted last is preempted and computed again. Prompts find what their replica's prefix cache
still holds, oldest use evicted first.

Sequences that decode all get one token a step, so a step is taken for all of them at once: what each has
follows from the number of steps since, and it is looked at when its last token comes or it is preempted.

Throughout, `m` is the fleet's memory, `r` the index of a replica, `q` that of a request and `t` a time.
"""

from pathlib import Path
from typing import Any

from replay.fleet.kernel.arrivals import arrive
from replay.fleet.kernel.histograms import report
from replay.fleet.kernel.moves import empty
from replay.fleet.kernel.routing import release
from replay.fleet.kernel.steps import advance

__all__ = ["advance", "arrive", "empty", "is_compiled", "release", "report"]


def is_compiled() -> bool:
    """Whether the compiler's cache holds the kernel as it is now; else the first replay takes 20 s more."""
    compiled: Any = arrive
    return any(Path(compiled.stats.cache_path).glob("arrivals.arrive-*.nbi"))
