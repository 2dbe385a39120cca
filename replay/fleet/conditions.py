"""The conditions of a simulated fleet, and the rules for the kernel that follow from them."""

import math
from dataclasses import dataclass

import numpy as np

from replay.defaults import LONGEST_COLD_START_S, MOST_REPLICAS, MOST_START_FAILURES
from replay.fleet.layout import RULES, WINDOW_S, Records
from replay.profile import Profile
from serve_app.ingress.prefix_index import FADE, MOST_PROMPT_TOKENS
from serve_app.ingress.replica import SEQUENCE_TOKENS
from serve_app.ingress.replica_choice import ASSUMED_TOKENS_PER_S, GROUP_REQUESTS, PREFILL_BUDGET_SHARE
from serve_app.ingress.request_counters import COLD_AFTER_S
from serve_app.settings.settings_error import shown
from serve_app.wire.signals import BYTES_PER_TOKEN

ROUTINGS = ("prefix-aware", "grouped", "tokens", "two-choices", "text-tree")
_USES_PER_PLACE = 100
"""As `engine.adapters`."""
_BYTES_PER_TOKEN = 4.4
"""Bytes of a request body per prompt token: English in JSON."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Targets, cold starts, routing and limits of a fleet, besides its profile."""

    ttft_target_s: float
    itl_target_s: float
    cold_start_s: tuple[float, float]
    """Least and most seconds of a cold start, drawn evenly."""
    warm_node_start_s: tuple[float, float] | None = None
    """The same on a warm node; None: as `cold_start_s`."""
    warm_nodes: int = 0
    """Replicas that have room on nodes that are always up, with vLLM imported; further ones start cold."""
    seed: int = 0
    routing: str = "prefix-aware"
    """`prefix-aware`: as the ingress picks. `grouped`: the same, as if all caches were empty. `tokens`: least
    prompt tokens outstanding, then least requests. `two-choices`: the fewer requests in flight of two
    replicas drawn at random. `text-tree`: the longest prefix, unless the load is uneven."""
    prefill_groups: bool = True
    """Whether prompts share steps, as the knob says: for the first two routings."""
    max_held: int = 1000
    """Most requests that the ingress queues for a cold start; it refuses more."""
    max_ongoing_requests: int = 1000
    """Requests one replica may have in flight; if every replica has that many, the ingress refuses."""
    drain_move_after_s: float | None = None
    """Seconds of draining after which requests that decode move to replicas with room; None: never."""
    start_failures: float = 0.0
    """Share of starts that fail, at an even point of their cold start; they are tried again."""
    capacity: int | None = None
    """Replicas the cluster has room for; further ones stay pending. None: no limit."""
    block_tokens: int = 0
    """Tokens of one prefix block; 0 for a trace without blocks."""
    background_step_s: float = math.inf
    """Sequences of the lane `background` join a step only as long as it takes at most this many seconds. The
    knobs say how many (`Knobs.background_step_s`)."""
    body_noise: float = 0.2
    """Bodies differ from the usual bytes per token by at most this share, evenly. Otherwise the policy could
    compute the tokens of a prompt from its bytes."""

    def problems(self) -> list[str]:
        """Each option that is out of its bounds, with its value and the bounds."""
        least, most = self.cold_start_s
        checks = (
            (
                0 <= least <= most <= LONGEST_COLD_START_S,
                f"cold_start_s = {shown([least, most])}: must be two numbers from 0 to "
                f"{LONGEST_COLD_START_S:g}, the first at most the second",
            ),
            (
                self.routing in ROUTINGS,
                f"routing = {shown(self.routing)}: must be one of {', '.join(ROUTINGS)}",
            ),
            (
                self.capacity is None or 1 <= self.capacity <= MOST_REPLICAS,
                f"capacity = {self.capacity}: must be from 1 to {MOST_REPLICAS}",
            ),
            (
                0 <= self.start_failures <= MOST_START_FAILURES,
                f"start_failures = {self.start_failures:g}: must be from 0 to {MOST_START_FAILURES:g}",
            ),
        )
        return [problem for right, problem in checks if not right]


def rules(profile: Profile, conditions: Conditions) -> Records:
    """The record of `RULES` for the kernel.

    Raises ValueError for a profile whose steps have less than one token for each sequence, as vLLM does.
    """
    if profile.max_num_batched_tokens < profile.max_num_seqs:
        raise ValueError(
            f"max_num_batched_tokens = {profile.max_num_batched_tokens}: must be at least max_num_seqs = "
            f"{profile.max_num_seqs}, as every sequence gets a token in every step"
        )
    step = profile.step
    # As `release_limit`: an eighth of a batch waits in the engine to replace requests that end.
    room = profile.max_num_seqs + math.ceil(profile.max_num_seqs / 8)
    record = np.zeros(1, RULES)
    for name, value in {
        "base_s": step.base_s,
        "per_sequence_s": step.per_sequence_s,
        "per_kv_token_s": step.per_kv_token_s,
        "per_prefill_token_s": step.per_prefill_token_s,
        "max_num_seqs": profile.max_num_seqs,
        "max_num_batched_tokens": profile.max_num_batched_tokens,
        "kv_cache_tokens": profile.kv_cache_tokens,
        "block_tokens": conditions.block_tokens,
        "ttft_target_s": conditions.ttft_target_s,
        "itl_target_s": conditions.itl_target_s,
        "background_step_s": conditions.background_step_s,
        "max_held": conditions.max_held,
        "room": min(room, conditions.max_ongoing_requests),
        "most_in_flight": conditions.max_ongoing_requests,
        "sequence_tokens": SEQUENCE_TOKENS,
        "prefix_aware": conditions.routing == "prefix-aware" and conditions.block_tokens > 0,
        "text_tree": conditions.routing == "text-tree",
        "two_choices": conditions.routing == "two-choices",
        "prefill_budget_s": PREFILL_BUDGET_SHARE * conditions.ttft_target_s
        if conditions.prefill_groups and conditions.routing in ROUTINGS[:2]
        else 0.0,
        "group_requests": GROUP_REQUESTS,
        "pace_fade": FADE,
        "bytes_per_token": _BYTES_PER_TOKEN,
        "bytes_per_pending_token": BYTES_PER_TOKEN,
        "most_pending_tokens": MOST_PROMPT_TOKENS,
        "cold_after_s": COLD_AFTER_S,
        "window_s": WINDOW_S,
        "adapter_load_s": profile.adapter_load_s,
        "max_cached_adapters": profile.max_cached_adapters,
        "adapter_memory": _USES_PER_PLACE * profile.max_cached_adapters,
        "tokens_per_s": ASSUMED_TOKENS_PER_S,
    }.items():
        record[name] = value
    return record
