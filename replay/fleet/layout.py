"""The memory of the simulated fleet: arrays of records that the compiled kernel works on.

Only the one-minute windows grow with the trace.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from serve_app.settings.caller import LANES
from serve_app.settings.model_names import MOST_ADAPTERS

Records = Any
"""A NumPy array of records; their fields are the names below."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FREE, STARTING, READY, DRAINING = 0, 1, 2, 3
INTERACTIVE, STANDARD, BACKGROUND = range(len(LANES))

NONE = -1
"""No request, no replica."""
NEVER = 1 << 60
"""More steps than any replica takes."""

WINDOW_S = 60.0
"""Seconds of a window by which targets are judged."""

# One log-spaced histogram serves every latency of the whole replay: 1 % wide, from 10 us to 1,000 s and on.
SHORTEST_S = 1e-5
RATIO = 1.01
BINS = 1_960
TTFT, TTFT_COLD, ITL, E2E = 0, 1, 2, 3
TTFT_INTERACTIVE, TTFT_BACKGROUND = 4, 5
"""The former is part of `TTFT` and `TTFT_COLD`. No other histogram includes the lane `background`."""
HISTOGRAMS = 6
# Per one-minute window they are 5 % wide, as are those of a replica's last 30 s (`LatencyWindow`).
WINDOW_SHORTEST_S = 1e-4
WINDOW_RATIO = 1.05
WINDOW_BINS = 331
SLICES = 6
SLICE_S = 5.0
QUEUE_PART, PREFILL_PART, ITL_PART = 0, 1, 2

REPLICA = np.dtype(
    [
        ("status", "i8"),
        ("slowness", "f8"),  # the time of a step, relative to the profile's
        ("step_began", "f8"),
        ("step_end", "f8"),  # inf without a step under way
        ("step_decodes", "i8"),  # sequences that decode in it
        ("step_prefill", "i8"),  # prompt tokens in it
        ("step_background", "i8"),  # of `step_decodes`, those of the lane `background`
        ("step_background_prefill", "i8"),  # of `step_prefill`
        ("taken", "i8"),  # steps that have ended
        ("next_end", "i8"),  # the value of `taken` when the next sequence in the batch has its last token
        ("batch_size", "i8"),
        ("prefilling", "i8"),  # requests of the batch that do not decode yet
        ("background_batch", "i8"),  # of `batch_size`, the last ones: those of the lane `background`
        ("background_prefilling", "i8"),  # of `prefilling`
        ("paused", "i8"),  # of `background_batch`, the last ones: those without a token of the step
        ("context", "i8"),  # tokens in the KV cache of those that decode
        ("kv_used", "i8"),  # tokens in the KV cache, with those of the step under way
        ("head", "i8"),  # the queue, linked by the requests' `next`, in the order of lanes
        ("tail", "i8"),
        ("waiting", "i8"),
        ("waiting_tokens", "i8"),  # prompts of requests without a token yet
        ("recompute_tokens", "i8"),  # tokens that were preempted and are not computed again yet
        ("in_flight", "i8"),  # without the lane `background`
        ("background", "i8"),  # in flight, of that lane
        ("pending_tokens", "i8"),  # the ingress's estimate, for requests without a token yet
        ("group", "i8"),  # number of the prefill group that is under way
        ("group_since", "f8"),  # when that group began
        ("group_tokens", "i8"),  # its pending tokens
        ("next_tokens", "i8"),  # pending tokens of the next group
        ("next_requests", "i8"),
        ("load_tokens", "i8"),  # the part of `pending_tokens` that stands for loads of adapters
        ("load_s", "f8"),  # loads of adapters before the next step
        ("adapters", "i8"),  # loaded ones
        ("adapter_uses", "i8"),
        ("last_sent", "i8"),  # number of the last request sent to it; 0 before the first
        ("last_end", "f8"),  # the latest end of a request
        # since the last report
        ("steps", "f8"),
        ("sum_s", "f8"),
        ("sum_batch", "f8"),
        ("sum_prefill", "f8"),
        ("sum_kv", "f8"),
        # since the start
        ("busy_s", "f8"),
        ("prefilled", "f8"),
        ("finished", "f8"),
        ("finished_prompt", "f8"),
        ("finished_output", "f8"),
        ("preemptions", "f8"),
        ("slice", "i8"),
        ("cached_blocks", "i8"),
        ("indexed_blocks", "i8"),
    ]
)
REQUEST = np.dtype(
    [
        ("lane", "i8"),
        ("arrived", "f8"),
        ("admitted", "f8"),  # to a batch for the first time; negative before
        ("last_at", "f8"),  # when it was sent to its replica or preempted
        ("prompt", "i8"),
        ("output", "i8"),
        ("todo", "i8"),  # tokens to prefill, after a preemption those of the answer too; 0: it decodes
        ("computed", "i8"),  # tokens in the KV cache, while it prefills
        ("scheduled", "i8"),  # prefill tokens of the step under way
        ("generated", "i8"),  # while it does not decode
        ("ends", "i8"),  # while it decodes: the replica's `taken` at its last token
        ("cold", "i8"),
        ("body", "f8"),  # bytes
        ("pending", "i8"),  # prompt tokens as the ingress estimates them
        ("group", "i8"),  # the prefill group it was sent with
        ("before", "i8"),  # pending tokens of its replica when it was sent, its own included
        ("sent", "f8"),
        ("next", "i8"),
        ("blocks", "i8"),
        ("adapter", "i8"),  # 0 for the model itself
        ("load_tokens", "i8"),  # the part of `pending` that stands for the load of its adapter
    ]
)
ADAPTER = np.dtype(
    [
        ("loaded", "i8"),
        ("calls", "i8"),  # requests on the replica
        ("uses", "f8"),  # by which adapters are unloaded; halved now and then
    ]
)
TOTALS = np.dtype(
    [
        ("free", "i8"),  # first unused request record
        ("open", "i8"),
        ("held_head", "i8"),  # the queue for a cold start, linked by `next`
        ("held_tail", "i8"),
        ("held", "i8"),
        ("held_bytes", "f8"),
        ("background_head", "i8"),  # the queue of the lane `background`, likewise
        ("background_tail", "i8"),
        ("background_held", "i8"),
        ("background_held_bytes", "f8"),
        ("used", "i8"),  # replica records ever used
        ("random", "u8"),
        ("pace_s", "f8"),  # faded sums over prompts with a first token: seconds since they were sent,
        ("pace_tokens", "f8"),  # the tokens prefilled meanwhile,
        ("prompts", "f8"),  # the number of prompts,
        ("prompt_tokens", "f8"),  # and their own tokens
        ("sharing", "f8"),  # faded share of prompts with a cached prefix on some replica
        # without the lane `background`, as far as `background_finished`
        ("arrivals", "f8"),
        ("arrived_bytes", "f8"),
        ("arrived_tokens", "f8"),
        ("admitted", "f8"),
        ("rejected", "f8"),
        ("too_long", "f8"),
        ("infeasible", "f8"),
        ("first_tokens", "f8"),
        ("ttft_sum", "f8"),
        ("finished", "f8"),
        ("finished_prompt", "f8"),
        ("finished_output", "f8"),
        ("itl_count", "f8"),
        ("itl_sum", "f8"),
        ("background_arrivals", "f8"),
        ("background_tokens", "f8"),  # prompts and answers of these
        ("background_refused", "f8"),
        ("background_finished", "f8"),
        ("background_last_end", "f8"),
        ("preemptions", "f8"),
        ("cached", "f8"),  # prompt tokens found in prefix caches
        ("adapter_requests", "f8"),  # requests for adapters that came to a replica, moved ones again
        ("adapter_hits", "f8"),  # of these, the ones whose adapter was loaded
        ("moves", "f8"),  # of requests from draining replicas to others
    ]
)
WINDOW = np.dtype(
    [
        ("requests", "f8"),
        ("ttft_ok", "f8"),
        ("cold", "f8"),
        ("cold_ok", "f8"),
        ("rejected", "f8"),
        ("itl", "f8"),
        ("itl_ok", "f8"),
        ("interactive", "f8"),  # of `requests`
        ("interactive_ok", "f8"),  # of `ttft_ok`
        ("background_arrivals", "f8"),  # no other field includes the lane `background`
        ("background_finished", "f8"),  # in this minute
    ]
)
RULES = np.dtype(
    [
        ("base_s", "f8"),
        ("per_sequence_s", "f8"),
        ("per_kv_token_s", "f8"),
        ("per_prefill_token_s", "f8"),
        ("max_num_seqs", "i8"),
        ("max_num_batched_tokens", "i8"),
        ("kv_cache_tokens", "i8"),
        ("block_tokens", "i8"),
        ("ttft_target_s", "f8"),
        ("itl_target_s", "f8"),
        ("background_step_s", "f8"),  # most seconds of a step with sequences of the lane `background`
        ("max_held", "i8"),
        ("room", "i8"),  # most requests in flight of a replica that takes queued requests, or `background`
        ("most_in_flight", "i8"),  # the same for new requests; beyond it on every replica they are refused
        ("sequence_tokens", "i8"),  # weight of a request in flight in a pick
        ("prefix_aware", "i8"),  # 1: the pick subtracts cached prompt tokens
        ("text_tree", "i8"),  # 1: `choose_by_text`
        ("two_choices", "i8"),  # 1: `choose_of_two`
        ("prefill_budget_s", "f8"),  # seconds a request may wait for prefill, its own included; 0: no groups
        ("group_requests", "i8"),  # most requests of a prefill group
        ("pace_fade", "f8"),
        ("bytes_per_token", "f8"),
        ("bytes_per_pending_token", "i8"),  # for the ingress's estimate of a prompt
        ("most_pending_tokens", "i8"),
        ("cold_after_s", "f8"),  # a request that was queued for longer waited for a cold start
        ("window_s", "f8"),
        ("adapter_load_s", "f8"),
        ("max_cached_adapters", "i8"),
        ("adapter_memory", "i8"),  # uses of adapters after which the counts are halved
        ("tokens_per_s", "f8"),  # of prefill, until first tokens have shown it
    ]
)


class Memory(NamedTuple):
    """The arrays of one simulated fleet."""

    rules: Records
    totals: Records
    replicas: Records
    requests: Records
    batch: npt.NDArray[np.int64]
    """[replica, index]: the requests in the batch, in the order in which they were admitted."""
    windows: Records
    window_ttft: npt.NDArray[np.uint32]
    window_itl: npt.NDArray[np.uint32]
    """[window, bin]: 2.6 KB a minute, all that grows with the length of a trace."""
    histograms: npt.NDArray[np.float64]
    """[latency, bin] of the whole replay."""
    recent: npt.NDArray[np.float64]
    """[replica, part, slice, bin] of the last 30 s; behind the slices stands their sum."""
    blocks: npt.NDArray[np.int64]
    """[request, index]: the ids of its prompt's prefix blocks."""
    cache: npt.NDArray[np.int64]
    """[replica, index]: prefix blocks in its cache, the latest used last."""
    indexed: npt.NDArray[np.int64]
    """[replica, index]: those that the ingress takes to be there."""
    adapters: Records
    """[replica, number]: the adapters."""


def allocate(
    rules: Records, replicas: int, requests: int, windows: int, prompt_blocks: int, cache_blocks: int
) -> Memory:
    """Memory for the given numbers; the functions `grow_*` enlarge it."""
    totals = np.zeros(1, TOTALS)
    totals["free"] = 0
    totals["held_head"] = totals["held_tail"] = NONE
    totals["background_head"] = totals["background_tail"] = NONE
    totals["random"] = 88_172_645_463_325_252
    pool = np.zeros(requests, REQUEST)
    pool["next"] = np.arange(1, requests + 1)
    pool["next"][-1] = NONE
    return Memory(
        rules,
        totals,
        _fresh(replicas),
        pool,
        np.full((replicas, int(rules["max_num_seqs"][0])), NONE, np.int64),
        np.zeros(windows, WINDOW),
        np.zeros((windows, WINDOW_BINS), np.uint32),
        np.zeros((windows, WINDOW_BINS), np.uint32),
        np.zeros((HISTOGRAMS, BINS)),
        np.zeros((replicas, 3, SLICES + 1, WINDOW_BINS)),
        np.zeros((requests, prompt_blocks), np.int64),
        np.zeros((replicas, cache_blocks), np.int64),
        np.zeros((replicas, cache_blocks), np.int64),
        np.zeros((replicas, MOST_ADAPTERS + 1), ADAPTER),
    )


def renew_replica(memory: Memory, slot: int) -> None:
    """Reset a record for a replica that is starting."""
    memory.replicas[slot] = _fresh(1)[0]
    memory.replicas["status"][slot] = STARTING
    memory.recent[slot] = 0.0
    memory.adapters[slot] = np.zeros((), ADAPTER)
    memory.totals["used"] = max(int(memory.totals["used"][0]), slot + 1)


def _fresh(replicas: int) -> Records:
    fleet = np.zeros(replicas, REPLICA)
    fleet["slowness"] = 1.0
    fleet["step_end"] = np.inf
    fleet["next_end"] = NEVER
    fleet["head"] = fleet["tail"] = NONE
    return fleet


def _longer(array: Records, length: int) -> Records:
    grown = np.zeros((length, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


def grow_windows(memory: Memory, windows: int) -> Memory:
    """The memory with room for `windows` one-minute windows."""
    return memory._replace(
        windows=_longer(memory.windows, windows),
        window_ttft=_longer(memory.window_ttft, windows),
        window_itl=_longer(memory.window_itl, windows),
    )


def grow_requests(memory: Memory, requests: int) -> Memory:
    """The memory with room for `requests` open requests."""
    old = len(memory.requests)
    pool = _longer(memory.requests, requests)
    pool["next"][old:] = np.arange(old + 1, requests + 1)
    pool["next"][-1] = memory.totals["free"][0]
    memory.totals["free"] = old
    return memory._replace(requests=pool, blocks=_longer(memory.blocks, requests))


def grow_replicas(memory: Memory, replicas: int) -> Memory:
    """The memory with room for `replicas` at a time."""
    old = len(memory.replicas)
    return memory._replace(
        replicas=np.concatenate((memory.replicas, _fresh(replicas - old))),
        batch=_longer(memory.batch, replicas),
        recent=_longer(memory.recent, replicas),
        cache=_longer(memory.cache, replicas),
        indexed=_longer(memory.indexed, replicas),
        adapters=_longer(memory.adapters, replicas),
    )
