"""The pick: which of the running replicas a request goes to.

A step that prefills delays every sequence of its batch, however many prompts share the step. So streams are
sent in prefill groups: prompts that one engine step prefills together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from serve_app.api.prompt_prefix import PromptPrefix
from serve_app.ingress.prefix_index import NOTHING, Expected

SEQUENCE_TOKENS = 64
"""The weight of a request in flight in a pick, in prompt tokens still to be prefilled.

A prompt token makes one step longer, the one that prefills it; a running sequence makes every step longer,
for all that share the batch. By the step time that is assumed of a 7B model on an A100, a sequence of 600
tokens costs 0.12 ms + 600 * 0.12 us = 0.19 ms a step, as much as four prompt tokens of 50 us; 64 is its cost
over sixteen steps.
"""
GROUP_REQUESTS = 4
"""The most requests of one prefill group: a group of four makes a quarter of the late steps, and each further
request saves little and makes its step longer."""


@dataclass(slots=True, eq=False)
class Replica:
    """One running engine replica: where its data plane is, and which requests of this process it has."""

    replica_id: str
    address: str
    token: str
    identity: str = ""
    """Which model it serves; see `weights.model_identity`. "" where an earlier version does not say."""
    in_flight: int = 0
    load: int = 0
    """`pending_prompt_tokens + SEQUENCE_TOKENS * in_flight`."""
    trouble: str = ""
    """Why no request goes to it, as its heartbeats or their absence tell; "" where nothing is wrong."""
    unlisted_at: float | None = None
    """When Ray ceased to list it, by the clock of its `ReplicaSet`: it drains, or is lost. Else None."""
    still_s: float = 0.0
    """For how long at least it has been standing still, where that is its trouble."""
    failures: int = 0
    """How often it could not be reached, or had no living engine, since its last sign of life."""
    group: int = 0
    """The number of the prefill group under way, whose prompts the engine prefills in one step."""
    group_since: float = 0.0
    """When that group began."""
    group_tokens: int = 0
    """Prompt tokens of that group."""
    next_tokens: int = 0
    """Prompt tokens of the requests sent meanwhile, which will share the step after it."""
    next_requests: int = 0

    @property
    def pending_prompt_tokens(self) -> int:
        """Prompt tokens, as estimated, of the requests in flight that have no answer yet."""
        return self.load - SEQUENCE_TOKENS * self.in_flight

    def join_group(self, reservation: Reservation, now: float) -> None:
        """Put a request that has just been picked for into the group that the next step prefills."""
        reservation.group = self.group
        reservation.sent = now
        reservation.tokens_before = self.pending_prompt_tokens
        if not self.group_tokens:
            self.group_tokens = reservation.pending_prompt_tokens
            self.group_since = now
        else:
            reservation.group += 1
            self.next_tokens += reservation.pending_prompt_tokens
            self.next_requests += 1

    def leave_group(self, reservation: Reservation, now: float) -> None:
        """Take a request that ends before its first token out of its group."""
        if reservation.group > self.group:
            self.next_tokens -= reservation.pending_prompt_tokens
            self.next_requests -= 1
            return
        self.group_tokens -= reservation.pending_prompt_tokens
        if not self.group_tokens:
            self.end_groups(self.group, now)

    def end_groups(self, group: int, now: float) -> None:
        """Count all groups up to `group` as prefilled: engines prefill in the order in which requests came.

        The group under way ends with its first token, since all its first tokens come together; then the
        group that was sent after it begins.
        """
        self.group_tokens = self.next_tokens if group == self.group else 0
        self.next_tokens = self.next_requests = 0
        self.group = group + 1
        self.group_since = now


@dataclass(slots=True, eq=False)
class Reservation:
    """One request's place on a replica, from the pick to the request's end there."""

    replica: Replica
    pending_prompt_tokens: int
    """0 once the replica has answered."""
    group: int = -1
    """Its prefill group; -1 for a request that is not streamed, since the end of its prefill is not seen."""
    tokens_before: int = 0
    """Prompt tokens that the replica had to prefill when the request was sent, its own included."""
    sent: float = 0.0
    prefix: PromptPrefix | None = None
    """The hashes of its prompt."""
    expected: Expected = NOTHING
    """The part of the prompt that was expected in the replica's cache."""
    released: bool = False


def least_delay(
    replicas: Iterable[Replica],
    room: int,
    prompt_tokens: int,
    cached: Mapping[str, int],
    waiting: float,
    most_tokens: float,
    step_tokens: float,
    oldest: float,
) -> Replica | None:
    """The replica where a prompt delays requests least, if it meets the TTFT target there.

    The delay is counted in prompt tokens to be prefilled: the prompt's own, once for itself and once for each
    stream whose token they make late. A prompt that joins a group makes none late. A prompt that begins a
    group makes as many late as requests are in flight, and half as many if the group comes after the one
    under way, since others will join it, or if the prompt fits the step in part only. The prompt tokens ahead
    count with the weight `waiting`: waiting costs nothing while short new prompts share steps.

    Args:
        replicas: All that are running, the longest unused first.
        room: Only replicas with fewer requests in flight are considered.
        prompt_tokens: Of the prompt.
        cached: The prompt tokens in the replicas' caches, by replica id.
        waiting: The weight of a prompt token ahead, 0 to 1.
        most_tokens: Prompt tokens to prefill, ahead and own, with which a replica is still considered.
        step_tokens: The most tokens of an engine's step.
        oldest: A group that began before this time does not end: its engine stands still.
    """
    chosen: Replica | None = None
    least_ahead = fewest = 0
    delay = least = 0.0
    waits = 2.0 * waiting  # delays are doubled, so that half a late token is a whole number
    fewest_failures: float = math.inf
    own = prompt_tokens
    for replica in replicas:
        failures = replica.failures
        if failures > fewest_failures:
            continue
        if failures < fewest_failures:
            fewest_failures, chosen = failures, None
        in_flight = replica.in_flight
        if in_flight >= room:
            continue
        ahead = replica.load - SEQUENCE_TOKENS * in_flight
        if cached:
            own = prompt_tokens - cached.get(replica.replica_id, 0)
        if ahead + own > most_tokens:
            continue
        late = 2 * in_flight
        if replica.group_tokens:
            if replica.group_since < oldest:
                continue
            joining = replica.next_requests
            if not joining or replica.next_tokens + own > step_tokens:
                late = in_flight
            elif joining < GROUP_REQUESTS:
                late = 0
        delay = own * (2 + late)
        if waits:
            delay += waits * ahead
        if chosen is not None:
            if delay > least:
                continue
            if delay == least and (ahead > least_ahead or (ahead == least_ahead and in_flight >= fewest)):
                continue
        chosen, least, least_ahead, fewest = replica, delay, ahead, in_flight
    return chosen


def least_loaded(replicas: Iterable[Replica], limit: int, cached: Mapping[str, int]) -> Replica | None:
    """The replica with the least load, of those with fewer than `limit` requests in flight.

    Cached prompt tokens need no prefill, and are subtracted from the load.
    """
    chosen: Replica | None = None
    least = fewest = 0
    fewest_failures: float = math.inf
    for replica in replicas:
        failures = replica.failures
        if failures > fewest_failures:
            continue
        if failures < fewest_failures:
            fewest_failures, chosen = failures, None
        in_flight = replica.in_flight
        if in_flight >= limit:
            continue
        load = replica.load
        if cached:
            load -= cached.get(replica.replica_id, 0)
        if chosen is None or load < least or (load == least and in_flight < fewest):
            chosen, least, fewest = replica, load, in_flight
    return chosen
