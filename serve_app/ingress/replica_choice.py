"""Pick the running replica that gets a request.

A step that prefills delays every sequence of its batch once, whether it prefills one prompt or several. So
streams are sent in prefill groups: prompts that one engine step prefills together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from serve_app.api.prompt_prefix import PromptPrefix
from serve_app.ingress.prefix_index import NOTHING, Expected

SEQUENCE_TOKENS = 64
"""The weight of a request in flight in a pick, in prompt tokens still to be prefilled.

A prompt token lengthens only the step that prefills it. A running sequence lengthens every step, for all
sequences of the batch. For a 7B model on an A100, a sequence of 600 tokens is assumed to cost
0.12 ms + 600 * 0.12 us = 0.19 ms a step: as much as four prompt tokens of 50 us. So 64 is its cost over
sixteen steps.
"""
GROUP_REQUESTS = 4
"""The most requests of one prefill group. Groups of four delay a quarter as many steps. Each further request
saves little and lengthens the step."""


@dataclass(slots=True, eq=False)
class Replica:
    """One running engine replica: the address of its data plane, and its requests of this process."""

    replica_id: str
    address: str
    token: str
    identity: str = ""
    """The model that it serves; see `weights.model_identity`. "" from an earlier version."""
    in_flight: int = 0
    load: int = 0
    """`pending_prompt_tokens + SEQUENCE_TOKENS * in_flight`."""
    trouble: str = ""
    """Why it gets no requests, by its heartbeats or their absence; "" if nothing is wrong."""
    unlisted_at: float | None = None
    """When Ray stopped listing it, on the clock of its `ReplicaSet`: it drains or is lost. Else None."""
    still_s: float = 0.0
    """The least time for which it has stood still, if that is its trouble."""
    failures: int = 0
    """How often it was unreachable or had no living engine, since its last sign of life."""
    group: int = 0
    """The number of the current prefill group, whose prompts the engine prefills in one step."""
    group_since: float = 0.0
    """When the current group began."""
    group_tokens: int = 0
    """Prompt tokens of the current group."""
    next_tokens: int = 0
    """Prompt tokens of the next group: requests sent meanwhile, which will share the next step."""
    next_requests: int = 0

    @property
    def pending_prompt_tokens(self) -> int:
        """The estimated prompt tokens of all requests in flight without an answer."""
        return self.load - SEQUENCE_TOKENS * self.in_flight

    def join_group(self, reservation: Reservation, now: float) -> None:
        """Add a new reservation to the current group, or to the next one while a group is prefilled."""
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
        """Remove a request that ends before its first token from its group."""
        if reservation.group > self.group:
            self.next_tokens -= reservation.pending_prompt_tokens
            self.next_requests -= 1
            return
        self.group_tokens -= reservation.pending_prompt_tokens
        if not self.group_tokens:
            self.end_groups(self.group, now)

    def end_groups(self, group: int, now: float) -> None:
        """Count all groups up to `group` as prefilled, because engines prefill in the order of arrival.

        A group ends with its first token, because all its first tokens come together. Then the next begins.
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
    """Its prefill group; -1 for a request that is not streamed, whose end of prefill is not visible."""
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
    """Return the replica where a prompt delays requests least; None if all would miss its TTFT target.

    The delay is counted in prompt tokens: the prompt's own, once for the prompt itself and once for each
    delayed stream. A prompt that joins a group delays no stream. A prompt that begins a group delays every
    request in flight. Half as many count in two cases: while a group is being prefilled, because other
    prompts will join the next group; and if only part of the prompt fits the group's step. The prompt tokens
    ahead count with the weight `waiting`. Waiting costs nothing while short new prompts share steps.

    Args:
        replicas: All running replicas, the least recently used first.
        room: Only replicas with fewer requests in flight are considered.
        prompt_tokens: The tokens of the prompt.
        cached: The prompt tokens in the replicas' caches, by replica id.
        waiting: The weight of a prompt token ahead, 0 to 1.
        most_tokens: The most prompt tokens to prefill on a replica, the prompt's own included.
        step_tokens: The most tokens of an engine's step.
        oldest: If a group began before this time, its engine stands still.
    """
    chosen: Replica | None = None
    least_ahead = fewest = 0
    delay = least = 0.0
    waits = 2.0 * waiting  # delays are doubled, so that half a delayed stream is a whole number
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
    """Return the least loaded replica with fewer than `limit` requests in flight; None if there is none.

    Cached prompt tokens need no prefill, so they are subtracted from the load.
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
