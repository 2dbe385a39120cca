"""The running engine replicas of each deployment, as this process knows them, and the pick among them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

SEQUENCE_TOKENS = 64
"""What one request in flight weighs in a pick, in prompt tokens still to be prefilled.

A prompt token makes one step longer, the one that prefills it; a running sequence every step, for all who
share the batch. By the step time that is assumed of a 7B model on an A100, a sequence of 600 tokens costs
0.12 ms + 600 * 0.12 us = 0.19 ms a step, as much as four prompt tokens of 50 us; 64 is what it costs over
sixteen steps.
"""


GROUP_REQUESTS = 4
"""Requests of one prefill group at most: a group of four makes a quarter of the late steps, and each
further one saves little and makes its step longer."""
PATIENCE_SHARE = 0.8
"""Of the TTFT target, what a request may be expected to wait for prefill, its own included. The last fifth
is for what the expectation does not know: bytes tell tokens to some 20 %, and the step under way must end."""
PACE_FADE = 0.99
"""The pace of prefill is a mean over about a hundred first tokens."""


@dataclass(slots=True, eq=False)
class Replica:
    """One running engine replica: where its data plane is, and what this process has on it."""

    replica_id: str
    address: str
    token: str
    in_flight: int = 0
    load: int = 0
    """`pending_prompt_tokens + SEQUENCE_TOKENS * in_flight`."""
    trouble: str = ""
    """Why no request goes to it, as its heartbeats tell or their silence does; "" where nothing is wrong."""
    failures: int = 0
    """Times since its last good answer that it could not be reached or had no living engine."""
    group: int = 0
    """Number of the prefill group under way: the streams whose prompts its engine prefills in one step."""
    group_since: float = 0.0
    """When it began."""
    group_tokens: int = 0
    """Their prompt tokens."""
    next_tokens: int = 0
    """Of those sent meanwhile, which will share the step after it."""
    next_requests: int = 0

    @property
    def pending_prompt_tokens(self) -> int:
        """Prompt tokens, as estimated, of the requests in flight that nothing has come back of yet."""
        return self.load - SEQUENCE_TOKENS * self.in_flight


@dataclass(slots=True, eq=False)
class Place:
    """One request's place on a replica, from the pick to the request's end there."""

    replica: Replica
    pending_prompt_tokens: int
    """0 once the replica has answered."""
    group: int = -1
    """The prefill group it is in; -1 for one that is not streamed, whose prefill nobody sees the end of."""
    tokens_before: int = 0
    """Prompt tokens its replica had to prefill when it was sent, its own included."""
    sent: float = 0.0
    released: bool = False


@dataclass(slots=True)
class ReplicaSet:
    """The running replicas of one deployment. Kept current by `EngineRouter`.

    For the event loop of the ingress alone; Ray's router runs in it too (see `connect`).
    """

    clock: Callable[[], float] = time.perf_counter
    """Seconds."""
    _listed: dict[str, Replica] = field(default_factory=dict)
    """Those that Ray says run."""
    _replicas: dict[str, Replica] = field(default_factory=dict)
    """Of these, the ones that nothing is wrong with: those picked from, the longest unused first."""
    _missed: dict[str, Replica] = field(default_factory=dict)
    """Replicas that are gone while requests of this process still are on them."""
    _on_change: Callable[[], None] | None = None
    _on_trouble: Callable[[Replica], None] | None = None
    _pace_s: float = 0.0
    _pace_tokens: float = 0.0
    """Fading sums over first tokens: seconds since they were sent, and the tokens prefilled meanwhile."""
    _prompts: float = 0.0
    _prompt_tokens: float = 0.0
    """Fading sums over the same requests: how many, and their own tokens."""

    def notify(self, on_change: Callable[[], None]) -> None:
        """Call `on_change`, and nobody else, whenever a replica may have come, gone or got room."""
        self._on_change = on_change

    def notify_trouble(self, on_trouble: Callable[[Replica], None]) -> None:
        """Call `on_trouble`, and nobody else, whenever requests are kept away from a replica."""
        self._on_trouble = on_trouble

    def update(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        """Replace the set: data-plane address and token by replica id. Counts of those that stay are kept.

        So are those of a replica that is missed once and comes back: it would seem to have nothing to do.
        """
        known = {**self._missed, **self._listed}
        self._listed = {
            replica_id: known.get(replica_id) or Replica(replica_id, where["address"], where["token"])
            for replica_id, where in metadata.items()
        }
        self._replicas = {
            replica_id: replica for replica_id, replica in self._listed.items() if not replica.trouble
        }
        self._missed = {
            replica_id: replica
            for replica_id, replica in known.items()
            if replica.in_flight and replica_id not in metadata
        }
        self._changed()

    def __len__(self) -> int:
        """Replicas that requests go to: those that run, and that nothing is wrong with."""
        return len(self._replicas)

    def listed(self) -> Collection[Replica]:
        """Every replica that Ray says runs, those kept out of picks among them."""
        return self._listed.values()

    def keep_away(self, replica: Replica, trouble: str) -> None:
        """Pick `replica` for no request until it is `welcome` again. Nothing, for one that is not listed."""
        if replica.replica_id not in self._listed:
            return
        replica.trouble = trouble
        if self._replicas.pop(replica.replica_id, None) is not None and self._on_trouble is not None:
            self._on_trouble(replica)

    def welcome(self, replica: Replica) -> None:
        """Nothing is wrong with `replica`, as far as its heartbeats tell."""
        if replica.trouble and replica.replica_id in self._listed:
            replica.trouble = ""
            self._replicas[replica.replica_id] = replica
            self._changed()

    def in_flight(self, replica_id: str) -> int:
        """Requests this process has on a replica; 0 for one that is not in the set."""
        replica = self._replicas.get(replica_id)
        return replica.in_flight if replica is not None else 0

    def load(self, replica_id: str) -> int:
        """The load that picks go by (`Replica.load`); 0 for one that is not in the set."""
        replica = self._replicas.get(replica_id)
        return replica.load if replica is not None else 0

    def take(
        self, limit: int, prompt_tokens: int = 0, patience_s: float = 0.0, batch: int = 1 << 30
    ) -> Place | None:
        """A place on one of the replicas with fewer than `limit` requests in flight.

        Of those where the request is expected to have its first token within `patience_s`, the one where
        its prefill makes the fewest tokens late. A step that prefills holds up every sequence of its
        batch, however many prompts share it: so a prompt that joins a group makes none late, one that
        begins a group makes as many late as requests are in flight there, and one that begins the next
        group where one is under way half as many, since others will join it.

        Its patience is at most what a full group and one request more of the mean length take: to wait
        longer would make hardly a token less late. Where it would wait longer than that everywhere, or
        nothing is known of the pace of prefill, or `patience_s` is 0, the one with the least load. Of
        equals, the one with the fewest prompt tokens to prefill, then in flight; of those, the longest
        unused. A replica that could not be reached comes after every one that could, even if those are
        full: Ray will drop it, or it was us.

        Args:
            limit: Requests of this process that a replica may have.
            prompt_tokens: What the request adds to the load until the replica answers.
            patience_s: How long a stream may wait for prefill, its own included; 0 for other requests.
            batch: Requests that an engine runs at a time. Behind so many it waits for more than prefill.

        Returns:
            None where there is no replica, or none with room.
        """
        chosen: Replica | None = None
        if patience_s > 0.0 and self._pace_s > 0.0 and prompt_tokens > 0:
            in_time = patience_s * self._pace_tokens / self._pace_s
            worth = (GROUP_REQUESTS + 1) * self._prompt_tokens / self._prompts
            oldest = self.clock() - patience_s
            chosen = self._least_late(min(limit, batch), min(in_time, worth) - prompt_tokens, oldest)
        chosen = chosen or self._least_loaded(limit)
        if chosen is None:
            return None
        # To the end of the order, so that equals take turns.
        self._replicas[chosen.replica_id] = self._replicas.pop(chosen.replica_id)
        chosen.in_flight += 1
        chosen.load += prompt_tokens + SEQUENCE_TOKENS
        place = Place(chosen, prompt_tokens)
        if patience_s > 0.0 and prompt_tokens > 0:
            self._join(place)
        return place

    def _least_late(self, room: int, most_tokens: float, oldest: float) -> Replica | None:
        """Where a prompt makes the fewest tokens late, of the replicas where it would be in time."""
        chosen: Replica | None = None
        least = least_ahead = fewest = 0
        fewest_failures: float = math.inf
        for replica in self._replicas.values():
            failures = replica.failures
            if failures > fewest_failures:
                continue
            if failures < fewest_failures:
                fewest_failures, chosen = failures, None
            in_flight = replica.in_flight
            ahead = replica.load - SEQUENCE_TOKENS * in_flight
            if in_flight >= room or ahead > most_tokens:
                continue
            late = 2 * in_flight
            if replica.group_tokens:
                if replica.group_since < oldest:  # its engine stands still
                    continue
                joining = replica.next_requests
                late = in_flight if not joining else 0 if joining < GROUP_REQUESTS else late
            if chosen is not None:
                if late > least:
                    continue
                if late == least and (ahead > least_ahead or (ahead == least_ahead and in_flight >= fewest)):
                    continue
            chosen, least, least_ahead, fewest = replica, late, ahead, in_flight
        return chosen

    def _least_loaded(self, limit: int) -> Replica | None:
        chosen: Replica | None = None
        fewest_failures: float = math.inf
        for replica in self._replicas.values():
            failures = replica.failures
            if failures > fewest_failures:
                continue
            if failures < fewest_failures:
                fewest_failures, chosen = failures, None
            in_flight = replica.in_flight
            if in_flight < limit and (
                chosen is None
                or replica.load < chosen.load
                or (replica.load == chosen.load and in_flight < chosen.in_flight)
            ):
                chosen = replica
        return chosen

    def answered(self, place: Place) -> None:
        """The first byte of a good answer has come: the prompt is prefilled, and the replica is alive."""
        replica = place.replica
        replica.load -= place.pending_prompt_tokens
        if place.pending_prompt_tokens and place.group >= 0:
            now = self.clock()
            self._learn_pace(place, now - place.sent)
            if place.group >= replica.group:
                _end_groups(replica, place.group, now)
        place.pending_prompt_tokens = 0
        if replica.failures:
            replica.failures = 0
            self._changed()

    def release(self, place: Place) -> None:
        """Give a place back, whether its replica is still in the set or not. Once; again is nothing."""
        if place.released:
            return
        place.released = True
        replica = place.replica
        replica.in_flight -= 1
        replica.load -= place.pending_prompt_tokens + SEQUENCE_TOKENS
        if place.pending_prompt_tokens and place.group >= replica.group:
            self._leave_group(place)
        place.pending_prompt_tokens = 0
        self._changed()

    def _join(self, place: Place) -> None:
        """Into the group that the replica's next step prefills."""
        replica = place.replica
        place.group = replica.group
        place.sent = self.clock()
        place.tokens_before = replica.pending_prompt_tokens
        if not replica.group_tokens:
            replica.group_tokens = place.pending_prompt_tokens
            replica.group_since = place.sent
        else:
            place.group += 1
            replica.next_tokens += place.pending_prompt_tokens
            replica.next_requests += 1

    def _leave_group(self, place: Place) -> None:
        """A request that left before its first token."""
        replica = place.replica
        if place.group > replica.group:
            replica.next_tokens -= place.pending_prompt_tokens
            replica.next_requests -= 1
            return
        replica.group_tokens -= place.pending_prompt_tokens
        if not replica.group_tokens:
            _end_groups(replica, replica.group, self.clock())

    def _learn_pace(self, place: Place, seconds: float) -> None:
        """What one first token tells of prefill.

        Tokens are an estimate, and those found in a prefix cache, or behind an image's bytes, take no
        time: none may claim more than twice the pace known.
        """
        tokens = float(place.tokens_before)
        if self._pace_s > 0.0:
            tokens = min(tokens, 2.0 * seconds * self._pace_tokens / self._pace_s)
        self._pace_s = self._pace_s * PACE_FADE + seconds
        self._pace_tokens = self._pace_tokens * PACE_FADE + tokens
        self._prompts = self._prompts * PACE_FADE + 1.0
        self._prompt_tokens = self._prompt_tokens * PACE_FADE + place.pending_prompt_tokens

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()


def _end_groups(replica: Replica, group: int, now: float) -> None:
    """All groups up to `group` are prefilled: engines prefill in the order in which requests came.

    The group under way is over with its first token, for they come together; what was sent after it has
    begun then.
    """
    replica.group_tokens = replica.next_tokens if group == replica.group else 0
    replica.next_tokens = replica.next_requests = 0
    replica.group = group + 1
    replica.group_since = now


_sets: dict[str, ReplicaSet] = {}


def replica_set(deployment: str) -> ReplicaSet:
    """This process's set for `deployment`: one object, shared by its router and its client."""
    return _sets.setdefault(deployment, ReplicaSet())
