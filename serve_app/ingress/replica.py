"""A running engine replica with the requests of this process on it, and a reservation on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from serve_app.api.prompt_prefix import PromptPrefix
from serve_app.ingress.prefix_index import NOTHING, Expected

SEQUENCE_TOKENS = 64
"""The weight of a request in flight in a pick, in prompt tokens still to be prefilled.

A prompt token lengthens only the step that prefills it. A running sequence lengthens every step, for all
sequences of the batch. For a 7B model on an A100, a sequence of 600 tokens is assumed to cost
0.12 ms + 600 * 0.12 us = 0.19 ms a step: as much as four prompt tokens of 50 us. So 64 is its cost over
sixteen steps.
"""


@dataclass(slots=True, eq=False)
class Replica:
    """One running engine replica: the address of its data plane, and its requests of this process."""

    replica_id: str
    address: str
    token: str
    model_identity: str = ""
    """The model that it serves; see `weights.model_identity`."""
    variant: str = ""
    """The variant of the model that it belongs to; "" for a model without variants."""
    in_flight: int = 0
    """Requests of this process, without the lane `background`. That lane yields to all others within a step
    of the engine, so it must not keep them away from a replica."""
    load: int = 0
    """`pending_prompt_tokens + SEQUENCE_TOKENS * in_flight`."""
    background_in_flight: int = 0
    """Requests of this process of the lane `background`."""
    background_load: int = 0
    """As `load`, of these requests."""
    trouble: str = ""
    """Why it gets no requests, by its heartbeats or their absence; "" if nothing is wrong."""
    unlisted_at: float | None = None
    """When Ray stopped listing it, on the clock of its `ReplicaSet`: it drains or is lost. Else None."""
    draining: bool = False
    """Whether its streams should go to other replicas: Ray has stopped listing it, or its node ends."""
    ends_at: float | None = None
    """When its node is taken away, on the clock of its `ReplicaSet`; None if no end is announced."""
    notice_s: float = 0.0
    """How long before its end that was first known."""
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
    adapters: set[str] = field(default_factory=set)
    """The adapters that its engine has loaded, by its heartbeats and answers."""
    adapter_calls: Counter[str] = field(default_factory=Counter)
    """Requests of this process by their adapter."""
    load_tokens: int = 0
    """The part of the pending tokens that stands for loads of adapters."""
    adapter_load_s: float = 0.0
    """The time for which a load of an adapter occupies its engine; 0 until known."""
    first_runs_left: list[str] = field(default_factory=list)
    """The kinds of requests that its engine has not run yet, by its heartbeats."""
    unwritten_s: float = 0.0
    """How long its usage has been waiting for the ledger's database, by its heartbeats."""

    def has_adapter(self, name: str) -> bool:
        """Whether the engine has loaded the adapter, or will have loaded it for a request in flight."""
        return name in self.adapters or self.adapter_calls[name] > 0

    @property
    def all_in_flight(self) -> int:
        return self.in_flight + self.background_in_flight

    @property
    def pending_prompt_tokens(self) -> int:
        """The estimated prompt tokens of all requests in flight without an answer, except `background`."""
        return self.load - SEQUENCE_TOKENS * self.in_flight

    def count(self, reservation: Reservation, requests: int, prompt_tokens: int) -> None:
        """Add to the requests in flight and to their pending prompt tokens, in the lane of `reservation`."""
        load = prompt_tokens + SEQUENCE_TOKENS * requests
        if reservation.background:
            self.background_in_flight += requests
            self.background_load += load
        else:
            self.in_flight += requests
            self.load += load

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
    background: bool = False
    """Whether the request is of the lane `background`."""
    key: str = ""
    """The name of the client's key."""
    adapter: str = ""
    """The name of its adapter; "" for the model itself."""
    load_tokens: int = 0
    """The part of the pending tokens that stands for the load of its adapter."""
