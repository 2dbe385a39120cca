"""The slots of a deployment's replicas: a request takes one, has its first answer, and gives it back."""

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from serve_app.api.prompt_prefix import PromptPrefix
from serve_app.ingress.prefix_index import PrefixIndex
from serve_app.ingress.replica_choice import (
    GROUP_REQUESTS,
    SEQUENCE_TOKENS,
    Replica,
    Slot,
    least_delay,
    least_loaded,
)

PACE_FADE = 0.99
"""The pace of prefill is a mean over about a hundred first tokens."""


@dataclass(slots=True)
class PrefillPace:
    """How fast the engines of a deployment prefill: sums over first tokens, which fade."""

    seconds: float = 0.0
    """From sending a request to its first token."""
    tokens: float = 0.0
    """Prompt tokens prefilled meanwhile."""
    prompts: float = 0.0
    prompt_tokens: float = 0.0
    """The requests' own prompt tokens."""

    def learn(self, seconds: float, tokens: float, prompt_tokens: int) -> None:
        """Count one first token, which came after `seconds`, in which the engine had `tokens` to prefill.

        Tokens are an estimate, and those found in a prefix cache, or that stand for an image's bytes, take no
        time: no first token may claim more than twice the pace known.
        """
        if self.seconds > 0.0:
            tokens = min(tokens, 2.0 * seconds * self.tokens / self.seconds)
        self.seconds = self.seconds * PACE_FADE + seconds
        self.tokens = self.tokens * PACE_FADE + tokens
        self.prompts = self.prompts * PACE_FADE + 1.0
        self.prompt_tokens = self.prompt_tokens * PACE_FADE + prompt_tokens


@dataclass(slots=True)
class Slots:
    """The replicas that requests go to, and the requests of this process on them. For one event loop."""

    clock: Callable[[], float] = time.perf_counter
    """Seconds."""
    pace: PrefillPace = field(default_factory=PrefillPace)
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    sharing: float = 0.0
    """The share of prompts of which some replica held some, over about the last hundred."""
    step_tokens: float = math.inf
    """The most tokens of an engine's step; infinite until one has told."""
    awaited: bool = False
    """Whether held requests wait for room. Only then are they told of a slot that has become free."""
    _usable: dict[str, Replica] = field(default_factory=dict)
    """The replicas picked from, the longest unused first."""
    _on_change: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        """The number of replicas that requests go to: those that run and that nothing is wrong with."""
        return len(self._usable)

    def take(
        self,
        limit: int,
        prompt_tokens: int = 0,
        prefill_budget_s: float = 0.0,
        batch: int = 1 << 30,
        prefix: PromptPrefix | None = None,
        identity: str | None = None,
        refused: Collection[Replica] = (),
    ) -> Slot | None:
        """A slot on one of the replicas with fewer than `limit` requests in flight.

        A stream goes where its prefill delays requests least (`least_delay`), if it is expected to have its
        first token within `prefill_budget_s`, and within what a full group and one request more of the mean
        length take: to wait longer would make hardly a token less late. Otherwise, and where the pace of
        prefill is not known, a request goes to the replica with the least load. What a replica holds of the
        prompt in its cache need not be prefilled there. Of equals, the longest unused is picked. A replica
        that could not be reached comes after every one that could, even if those are full: Ray will drop it,
        or its next heartbeat heals it within half a second.

        Args:
            limit: Requests of this process that a replica may have.
            prompt_tokens: What the request adds to the load until the replica answers, if its prompt is new.
            prefill_budget_s: How long a stream may wait for prefill, its own included; 0 for other requests.
            batch: Requests that an engine runs at a time. Behind so many, it waits for more than prefill.
            prefix: What the prompt may share with others; None where that is not known.
            identity: Only replicas of this identity are considered; None for any.
            refused: Replicas that are not considered.

        Returns:
            None where there is no such replica, or none with room.
        """
        chosen: Replica | None = None
        matched = self.prefixes.matched(prefix) if prefix is not None and prompt_tokens else {}
        held: dict[str, int] = {}
        if matched and prefix is not None:
            most, size = prompt_tokens - 1, prefix.size  # the last token is always computed
            held = {name: min(prompt_tokens * part // size, most) for name, part in matched.items()}
        replicas: Collection[Replica] = self._usable.values()
        if identity is not None or refused:
            replicas = [one for one in replicas if identity in (None, one.identity) and one not in refused]
        pace = self.pace
        streamed = prefill_budget_s > 0.0 and prompt_tokens > 0
        now = self.clock() if streamed else 0.0
        if streamed and pace.seconds > 0.0:
            in_time = prefill_budget_s * pace.tokens / pace.seconds
            mean = pace.prompt_tokens / pace.prompts
            chosen = least_delay(
                replicas,
                min(limit, batch),
                prompt_tokens,
                held,
                max(self.sharing, min(2.0 * mean / self.step_tokens - 1.0, 1.0)),
                min(in_time, (GROUP_REQUESTS + 1) * mean),
                self.step_tokens,
                now - prefill_budget_s,
            )
        chosen = chosen or least_loaded(replicas, limit, held)
        if chosen is None:
            return None
        name = chosen.replica_id
        # To the end of the order, so that equals take turns.
        self._usable[name] = self._usable.pop(name)
        if held:
            prompt_tokens -= held.get(name, 0)
        chosen.in_flight += 1
        chosen.load += prompt_tokens + SEQUENCE_TOKENS
        slot = Slot(chosen, prompt_tokens)
        if prefix is not None:
            slot.prefix = prefix
            slot.expected = self.prefixes.sent(name, prefix, matched.get(name, 0))
            self.sharing = self.sharing * PACE_FADE + (1.0 - PACE_FADE) * bool(held)
        if streamed:
            chosen.join_group(slot, now)
        return slot

    def expected_tokens(self, slot: Slot) -> int | None:
        """The prompt tokens expected in the cache of a slot's replica; None where the prompt is not known."""
        return None if slot.prefix is None else self.prefixes.tokens(slot.expected)

    def learned(self, slot: Slot, cached_tokens: int | None, prompt_tokens: int | None) -> None:
        """Note what the engine found in its cache of the prompt that went to it, if it tells."""
        if slot.prefix is not None and cached_tokens is not None and prompt_tokens:
            self.prefixes.learn(
                slot.replica.replica_id, slot.prefix, slot.expected, cached_tokens, prompt_tokens
            )

    def answered(self, slot: Slot) -> None:
        """Note the first byte of a good answer: the prompt is prefilled, and the replica is alive."""
        replica, tokens = slot.replica, slot.pending_prompt_tokens
        replica.load -= tokens
        if tokens and slot.group >= 0:
            now = self.clock()
            self.pace.learn(now - slot.sent, float(slot.tokens_before), tokens)
            if slot.group >= replica.group:
                replica.end_groups(slot.group, now)
        slot.pending_prompt_tokens = 0
        self.reachable(replica)

    def reachable(self, replica: Replica) -> None:
        """Note a sign that a replica is reachable and has a living engine: its failures are over."""
        if replica.failures:
            replica.failures = 0
            if self.awaited:
                self._on_change()

    def release(self, slot: Slot) -> None:
        """Give a slot back, whether its replica is still in the set or not. A second call does nothing."""
        if slot.released:
            return
        slot.released = True
        replica = slot.replica
        replica.in_flight -= 1
        if slot.prefix is not None and slot.pending_prompt_tokens:
            self.prefixes.never_prefilled(replica.replica_id, slot.prefix, slot.expected)
        replica.load -= slot.pending_prompt_tokens + SEQUENCE_TOKENS
        if slot.pending_prompt_tokens and slot.group >= replica.group:
            replica.leave_group(slot, self.clock())
        slot.pending_prompt_tokens = 0
        if self.awaited:
            self._on_change()
