"""The conditions of a simulated fleet, and the rules for the kernel that follow from them."""

import math
from dataclasses import dataclass

import numpy as np

from replay.fleet.layout import RULES, WINDOW_S, Records
from replay.profile import Profile
from serve_app.ingress.admission import MOST_PROMPT_TOKENS, PREFILL_BUDGET_SHARE
from serve_app.ingress.prefix_index import BYTES_PER_TOKEN
from serve_app.ingress.replica_choice import GROUP_REQUESTS, SEQUENCE_TOKENS
from serve_app.ingress.replica_set import PACE_FADE
from serve_app.ingress.request_counters import COLD_AFTER_S

ROUTINGS = ("prefix-aware", "grouped", "tokens", "two-choices", "text-tree")
STEP_LAWS = ("linear", "roofline")


@dataclass(frozen=True, slots=True)
class Conditions:
    """Targets, cold starts, routing and limits of a fleet, besides its profile.

    Raises ValueError for a value out of its bounds.
    """

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
    """`prefix-aware`: as the ingress does, by what prompts delay and by what caches hold; `grouped`: the
    same, as if no cache held anything; `tokens`: least prompt tokens outstanding, then least requests;
    `two-choices`: the fewer requests in flight of two replicas drawn at random; `text-tree`: the longest
    prefix, unless the load is uneven (`kernel.routing.choose_by_text`)."""
    prefill_groups: bool = True
    """Whether prompts share steps, as the knob has it: for the first two routings."""
    step_law: str = "linear"
    """How the profile's seconds make a step: `linear`, their sum, as the policy's own model has it; or
    `roofline`, a shape that no such model fits (`kernel.step_time`)."""
    max_held: int = 1000
    """Requests the ingress holds at most; beyond them it refuses."""
    max_ongoing_requests: int = 1000
    """Requests one replica may have in flight; where all have so many the ingress refuses."""
    drain_move_after_s: float | None = None
    """Seconds of draining after which requests that decode move to replicas with room; None: never."""
    start_failures: float = 0.0
    """Share of starts that fail, at an even point of their cold start; they are tried again."""
    capacity: int | None = None
    """Replicas the cluster has room for; further ones stay pending. None: no limit."""
    block_tokens: int = 0
    """Tokens of one prefix block, where the trace carries them."""
    bytes_per_token: float = 4.4
    """Bytes of a request body per prompt token: English in JSON."""
    body_noise: float = 0.2
    """Bodies differ from that by at most this share, evenly, so that bytes do not give tokens away."""

    def __post_init__(self) -> None:
        least, most = self.cold_start_s
        warm_least, warm_most = self.warm_node_start_s or self.cold_start_s
        wrong_warm = not 0 <= warm_least <= warm_most < math.inf
        for name, value, wrong, bound in (
            ("ttft_target_s", self.ttft_target_s, not self.ttft_target_s > 0, "above 0"),
            ("itl_target_s", self.itl_target_s, not self.itl_target_s > 0, "above 0"),
            ("cold_start_s", self.cold_start_s, not 0 <= least <= most < math.inf, "(least, most), from 0"),
            ("warm_node_start_s", self.warm_node_start_s, wrong_warm, "(least, most), from 0"),
            ("warm_nodes", self.warm_nodes, self.warm_nodes < 0, "at least 0"),
            ("routing", self.routing, self.routing not in ROUTINGS, f"one of {', '.join(ROUTINGS)}"),
            ("step_law", self.step_law, self.step_law not in STEP_LAWS, f"one of {', '.join(STEP_LAWS)}"),
            ("max_held", self.max_held, self.max_held < 0, "at least 0"),
            ("max_ongoing_requests", self.max_ongoing_requests, self.max_ongoing_requests < 1, "at least 1"),
            (
                "drain_move_after_s",
                self.drain_move_after_s,
                self.drain_move_after_s is not None and not self.drain_move_after_s >= 0,
                "at least 0",
            ),
            # If every start failed, no request would be answered; without a cold start time would not pass.
            ("start_failures", self.start_failures, not 0 <= self.start_failures < 1, "from 0 to below 1"),
            ("capacity", self.capacity, self.capacity is not None and self.capacity < 1, "at least 1"),
            ("block_tokens", self.block_tokens, self.block_tokens < 0, "at least 0"),
            ("bytes_per_token", self.bytes_per_token, not 0 < self.bytes_per_token <= 1e6, "above 0, to 1e6"),
            ("body_noise", self.body_noise, not 0 <= self.body_noise <= 1, "from 0 to 1"),
        ):
            if wrong:
                raise ValueError(f"{name} = {value!r}: must be {bound}")


def rules(profile: Profile, conditions: Conditions) -> Records:
    """One record of `RULES`.

    Raises:
        ValueError: for a profile whose steps have less than one token for each sequence, which vLLM refuses.
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
        "roofline": conditions.step_law == "roofline",
        "max_num_seqs": profile.max_num_seqs,
        "max_num_batched_tokens": profile.max_num_batched_tokens,
        "kv_cache_tokens": profile.kv_cache_tokens,
        "block_tokens": conditions.block_tokens,
        "ttft_target_s": conditions.ttft_target_s,
        "itl_target_s": conditions.itl_target_s,
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
        "pace_fade": PACE_FADE,
        "bytes_per_token": conditions.bytes_per_token,
        "bytes_per_pending_token": BYTES_PER_TOKEN,
        "most_pending_tokens": MOST_PROMPT_TOKENS,
        "cold_after_s": COLD_AFTER_S,
        "window_s": WINDOW_S,
    }.items():
        record[name] = value
    return record
