"""The running engine replicas of a deployment, and the requests of this process on them."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from serve_app.api.prompt_prefix import PromptPrefix
from serve_app.ingress.candidates import CACHED, Candidates
from serve_app.ingress.prefix_index import PrefixIndex
from serve_app.ingress.replica import Replica, Reservation
from serve_app.ingress.replica_choice import ReplicaChoice, least_loaded
from serve_app.wire.data_plane import LEAVING_S

ASSUMED_LOAD_S = 0.5
"""The time that a load of an adapter takes, until a replica has reported it."""


@dataclass(slots=True)
class ReplicaSet:
    """The running replicas of one deployment, and the requests of this process on them.

    Each request calls `take`, then `note_first_byte`, and leaves its reservation. Call it only in the event
    loop of the ingress. Ray's router, which keeps the set current, runs in the same loop.
    """

    clock: Callable[[], float] = time.perf_counter
    """Seconds."""
    choice: ReplicaChoice = field(default_factory=ReplicaChoice)
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    on_change: list[Callable[[], None]] = field(default_factory=list)
    """Each is called when replicas may have changed and, while `awaited`, when one may have room."""
    awaited: bool = False
    """Whether requests are queued. Only then a free place is announced."""
    places: Counter[str] = field(default_factory=Counter)
    """The requests of this process by the name of their key, without the lane `background`. It has only keys
    with requests."""
    on_trouble: list[Callable[[Replica], None]] = field(default_factory=list)
    """Each listener is called when a replica gets trouble, and again when other replicas may take over the
    requests of this replica."""
    lost_at: float = -math.inf
    """When the last usable replica got trouble, until one is usable again; else minus infinity."""
    _usable: Candidates = field(default_factory=Candidates)
    """The replicas that can be picked."""
    _listed: dict[str, Replica] = field(default_factory=dict)
    """The replicas that Ray lists as running."""
    _missed: dict[str, Replica] = field(default_factory=dict)
    """Replicas that Ray no longer lists, and that still have requests of this process."""
    _by_variant: dict[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    """The metadata of the replicas that Ray lists, by variant. Each variant has a deployment of its own."""

    def __len__(self) -> int:
        """Return the number of replicas that get requests: those that run and have no trouble."""
        return len(self._usable.by_name)

    def take(
        self,
        limit: int,
        prompt_tokens: int = 0,
        prefill_budget_s: float = 0.0,
        batch: int = 1 << 30,
        prefix: PromptPrefix | None = None,
        model_identity: str | None = None,
        refused: Collection[Replica] = (),
        background: bool = False,
        adapter: str = "",
        key: str = "",
    ) -> Reservation | None:
        """Reserve a place on a replica with fewer than `limit` requests in flight (`ReplicaChoice.choose`).

        Cached prompt tokens need no prefill. Ties go to the least recently used replica. A replica that was
        unreachable comes last, even if all others are full: Ray drops it, or a heartbeat clears it within
        half a second.

        Args:
            limit: The most requests of this process on a replica; see `background`.
            prompt_tokens: The load that the request adds until the replica answers, if its prompt is new.
            prefill_budget_s: How long a stream may wait for prefill; 0 for other requests.
            batch: The most requests that an engine runs at once.
            prefix: The hashes of the prompt; None if it shares nothing.
            model_identity: Only replicas of this model_identity are considered; None for any.
            refused: Replicas that are not considered.
            background: Whether the request is of the lane `background`. Then `limit` counts the requests of
                all lanes, and the least loaded replica is chosen. Else `limit` does not count that lane.
            adapter: The name of its adapter; "" for the model itself. A replica without the adapter gets the
                request only if that delays requests less than the load would. The load counts in prompt
                tokens that could be prefilled meanwhile.
            key: The name of the client's key.

        Returns:
            The reservation; None if no such replica has room.
        """
        usable = self._usable.by_name
        looked = self._usable.look()
        is_part = len(looked) < len(usable)
        matched: dict[str, int] = {}
        cached: dict[str, int] = {}
        if prefix is not None and prompt_tokens:
            among, others = ([one.replica_id for one in looked], CACHED) if is_part else ((), -1)
            matched = self.prefixes.match(prefix, among, others)
            most, size = prompt_tokens - 1, prefix.size  # the last token is always computed
            cached = {name: min(prompt_tokens * part // size, most) for name, part in matched.items()}
        if is_part:
            looked = [*looked, *(usable[name] for name in matched if name in usable)]
            looked += self._usable.with_adapter(adapter) if adapter else []
        load_tokens = self._load_tokens(looked) if adapter else 0
        budget_s = prefill_budget_s if prompt_tokens and not background else 0.0
        now = self.clock() if budget_s else 0.0
        chosen: Replica | None = None
        for whole in (looked, usable.values()) if is_part else (looked,):
            replicas = whole
            if model_identity is not None or refused:
                replicas = [
                    one
                    for one in whole
                    if model_identity in (None, one.model_identity) and one not in refused
                ]
            saved = cached
            if adapter:
                # During a load the engine stands still for all its requests. What it unloads is loaded again.
                saved = {
                    (name := one.replica_id): cached.get(name, 0)
                    - (0 if one.has_adapter(adapter) else 2 * load_tokens * (1 + one.in_flight))
                    for one in replicas
                }
            if background:
                chosen = least_loaded(replicas, limit, saved, background=True)
            else:
                chosen = self.choice.choose(replicas, limit, batch, prompt_tokens, saved, budget_s, now)
            if chosen is not None and not chosen.failures:
                break  # a replica that was unreachable is the last choice of all, not only of the looked at
        if chosen is None:
            return None
        name = chosen.replica_id
        # Move it to the end of the order, so that equal replicas take turns.
        usable[name] = usable.pop(name)
        if cached:
            prompt_tokens -= cached.get(name, 0)
        if adapter and chosen.has_adapter(adapter):
            load_tokens = 0
        prompt_tokens += load_tokens
        reservation = Reservation(
            chosen,
            prompt_tokens,
            background=background,
            key=key,
            adapter=adapter,
            load_tokens=load_tokens,
        )
        if not background:
            self.places[key] += 1
        if adapter:
            chosen.adapter_calls[adapter] += 1
            self._usable.note_adapter(chosen, adapter)
            chosen.load_tokens += load_tokens
        chosen.count(reservation, 1, prompt_tokens)
        if prefix is not None:
            reservation.prefix = prefix
            reservation.expected = self.prefixes.record_prompt(name, prefix, matched.get(name, 0))
            self.choice.learn_sharing(bool(cached))
        if budget_s:
            chosen.join_group(reservation, now)
        return reservation

    def _load_tokens(self, replicas: Collection[Replica]) -> int:
        """Return how many prompt tokens a replica prefills in the time that a load of an adapter takes."""
        known = [one.adapter_load_s for one in replicas if one.adapter_load_s]
        return int(self.choice.prefill_speed() * (sum(known) / len(known) if known else ASSUMED_LOAD_S))

    def note_adapters(self, replica: Replica, names: Collection[str]) -> None:
        for name in set(names) - replica.adapters:
            self._usable.note_adapter(replica, name)
        replica.adapters = set(names)

    def expected_tokens(self, reservation: Reservation) -> int | None:
        """Return the prompt tokens expected in the replica's cache; None if the prompt has no hashes."""
        return None if reservation.prefix is None else self.prefixes.tokens(reservation.expected)

    def learn(self, reservation: Reservation, cached_tokens: int | None, prompt_tokens: int | None) -> None:
        """Record how many prompt tokens the engine found in its cache, if it reports them."""
        if reservation.prefix is not None and cached_tokens is not None and prompt_tokens:
            self.prefixes.learn(
                reservation.replica.replica_id,
                reservation.prefix,
                reservation.expected,
                cached_tokens,
                prompt_tokens,
            )

    def note_first_byte(self, reservation: Reservation) -> None:
        """Record the first byte of a good answer: the prompt is prefilled, and the replica is alive."""
        replica, tokens = reservation.replica, reservation.pending_prompt_tokens
        replica.count(reservation, 0, -tokens)
        if reservation.adapter:
            replica.adapters.add(reservation.adapter)
            replica.load_tokens -= reservation.load_tokens
        if tokens and reservation.group >= 0:
            now = self.clock()
            if not reservation.load_tokens:
                self.choice.of(replica.variant).learn_pace(
                    now - reservation.sent, float(reservation.tokens_before), tokens
                )
            if reservation.group >= replica.group:
                replica.end_groups(reservation.group, now)
        reservation.pending_prompt_tokens = reservation.load_tokens = 0
        self.note_reachable(replica)

    def note_reachable(self, replica: Replica) -> None:
        """Clear the failures of a replica that is reachable and has a living engine."""
        if replica.failures:
            replica.failures = 0
            if self.awaited:
                self._announce_change()

    def release(self, reservation: Reservation) -> None:
        """Take a reservation back, even if its replica has left the set."""
        replica = reservation.replica
        if not reservation.background:
            self.places[reservation.key] -= 1
            if not self.places[reservation.key]:
                del self.places[reservation.key]
        if reservation.prefix is not None and reservation.pending_prompt_tokens:
            self.prefixes.forget_unprefilled(replica.replica_id, reservation.prefix, reservation.expected)
        if reservation.adapter:
            replica.adapter_calls -= Counter([reservation.adapter])
            replica.load_tokens -= reservation.load_tokens
        replica.count(reservation, -1, -reservation.pending_prompt_tokens)
        self._usable.note_freed(replica)
        if reservation.pending_prompt_tokens and reservation.group >= replica.group:
            replica.leave_group(reservation, self.clock())
        reservation.pending_prompt_tokens = 0
        if self.awaited:
            self._announce_change()

    def update(self, metadata: Mapping[str, Mapping[str, str]], variant: str = "") -> None:
        """Set the running replicas of a variant by their metadata: `Engine.record_replica_metadata`.

        Replicas that stay keep their counts. So does a replica that is missing once and comes back: without
        its counts it would look idle.
        """
        known = {**self._missed, **self._listed}
        self._by_variant[variant] = metadata
        metadata = {name: each for part in self._by_variant.values() for name, each in part.items()}
        variants = {name: variant for variant, part in self._by_variant.items() for name in part}
        self._listed = {
            replica_id: known.get(replica_id)
            or Replica(replica_id, each["address"], each["token"], each["identity"], variants[replica_id])
            for replica_id, each in metadata.items()
        }
        self._usable.by_name = {
            name: one for name, one in self._listed.items() if not one.trouble and one.ends_at is None
        }
        self._usable.forget()
        self.prefixes.keep(self._listed)
        self._missed = {
            name: replica for name, replica in known.items() if replica.all_in_flight and name not in metadata
        }
        for name, replica in known.items():
            replica.draining = name not in metadata or replica.ends_at is not None
            if name in metadata:
                replica.unlisted_at = None
            elif replica.unlisted_at is None:
                replica.unlisted_at = self.clock()
                replica.adapters = set()  # if it comes back, its next heartbeat notes them again
        self._usable.forget_unlisted()
        self._changed()

    def listed(self) -> Collection[Replica]:
        """Return every replica that Ray lists, including those that are not picked."""
        return self._listed.values()

    def may_continue(self, model_identity: str) -> bool:
        """Whether a listed replica serves the model `model_identity`. If none is listed, the next one may."""
        return not self._listed or any(one.model_identity == model_identity for one in self._listed.values())

    def has_substitute(self, replica: Replica) -> bool:
        """Whether another replica is picked that serves the same model as `replica`."""
        return any(
            one.model_identity == replica.model_identity and one is not replica
            for one in self._usable.by_name.values()
        )

    def keep_away(self, replica: Replica, trouble: str) -> None:
        """Stop picking `replica` until `welcome`, and report its trouble.

        For a draining replica each call reports the trouble, because Ray does not check draining replicas.
        """
        known = self._listed.get(replica.replica_id) or self._missed.get(replica.replica_id)
        if known is not replica:
            return
        begins = not replica.trouble
        replica.trouble = trouble
        self._pass_over(replica)
        if begins or replica.unlisted_at is not None:
            self._announce_trouble(replica)

    def welcome(self, replica: Replica) -> None:
        """Pick `replica` again, if Ray lists it: its heartbeats report no trouble."""
        if replica.trouble:
            replica.trouble = ""
            self._use(replica)

    def note_end(self, replica: Replica, ends_in_s: float | None) -> None:
        """Note that the node of `replica` ends in `ends_in_s` seconds, or no more if it is None.

        In its last `LEAVING_S` seconds such a replica is not picked, and its streams move.
        """
        if ends_in_s is None or ends_in_s > LEAVING_S:
            if replica.ends_at is not None:
                replica.ends_at, replica.draining = None, replica.unlisted_at is not None
                self._use(replica)
            return
        known, replica.ends_at = replica.ends_at, self.clock() + ends_in_s
        if known is None:
            replica.draining, replica.notice_s = True, ends_in_s
            self._pass_over(replica)

    def _pass_over(self, replica: Replica) -> None:
        self._usable.forget()
        if self._usable.by_name.pop(replica.replica_id, None) is not None:
            if not len(self):
                self.lost_at = self.clock()
            if self.awaited or not len(self):
                self._announce_change()  # a queued request may now go to a replica that was unreachable

    def _use(self, replica: Replica) -> None:
        fit = not replica.trouble and replica.ends_at is None
        if fit and self._listed.get(replica.replica_id) is replica:  # Ray may list another of this id
            self._usable.by_name[replica.replica_id] = replica
            self._usable.forget()
            self._changed()

    def _announce_change(self) -> None:
        for listener in self.on_change:
            listener()

    def _announce_trouble(self, replica: Replica) -> None:
        for listener in self.on_trouble:
            listener(replica)

    def _changed(self) -> None:
        if len(self):
            self.lost_at = -math.inf
        self._announce_change()
        for replica in [*self._listed.values(), *self._missed.values()]:
            if replica.trouble and replica.all_in_flight:  # no other could take its requests so far
                self._announce_trouble(replica)


_sets: dict[str, ReplicaSet] = {}


def replica_set(deployment: str) -> ReplicaSet:
    """Return this process's only set for `deployment`, which Ray's router and the relay share."""
    return _sets.setdefault(deployment, ReplicaSet())
