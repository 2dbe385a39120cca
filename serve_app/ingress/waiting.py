"""Requests that wait: the queue for a replica, and what a waiting client is told.

A client may wait for a replica, for an adapter or for a long prompt. In the lane `background` it may wait for
hours, also after its first token. It is told so every `keep_alive_interval_s`.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from serve_app.api.dialect import ColdWait
from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError
from serve_app.api.trace import UNTRACED, Stage
from serve_app.ingress.cold_start_progress import ColdStartProgress
from serve_app.ingress.fair_queue import FairQueue
from serve_app.ingress.replica import Reservation
from serve_app.wire.spans import cold_start_root


@dataclass(slots=True, eq=False)
class Pending:
    """A request that needs a replica."""

    request: EngineRequest
    prompt_tokens: int
    """The estimate at admission."""
    prefill_budget_s: float
    """How long it may wait for prefill on a replica; see `ReplicaSet.take`."""
    retry: bool
    """Whether it has lost a replica."""
    model_identity: str | None
    """The model that began its answer; None for an answer that has not begun."""
    since: float = 0.0
    """When it was queued, on the admission's clock."""
    result: Reservation | ApiError | None = None
    """Its reservation, or why it was refused; None while it waits."""
    waiter: asyncio.Future[bool] | None = None
    """Waits for the result; see `KeepAlive.wait`."""

    @property
    def background(self) -> bool:
        return self.request.is_background


def end_queue(stage: Stage, got: Reservation | BaseException, *, cold: bool = False) -> None:
    """End the stage of a queued request, which got a reservation or an error.

    After a cold start, it links to the trace of the replica's start.
    """
    if isinstance(got, Reservation):
        if cold:
            stage.link(cold_start_root(got.replica.replica_id))
        stage.end("released")
    elif isinstance(got, ApiError):
        stage.end("refused", got.message)
    else:
        stage.end("abandoned")


class RequestQueue:
    """The requests that wait for a replica.

    Requests that have lost a replica go first: they arrived earlier. `FairQueue` has the order of the others.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queued: dict[Pending, None] = {}
        """In the order of arrival."""
        self._retries: dict[Pending, None] = {}
        self._newcomers: FairQueue[Pending] = FairQueue()
        self.background = 0
        """The number of queued requests of the lane `background`."""
        self._by_key: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        """The number of queued newcomers by key, of the lane `background` and of the other lanes."""

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def foreground(self) -> int:
        """The number of queued requests of the other lanes."""
        return len(self._queued) - self.background

    def newcomers(self, key: str) -> int:
        """Return the number of a key's queued newcomers of the other lanes."""
        return self._by_key[False][key]

    def requests(self, *, background: bool = False) -> list[Pending]:
        """Return the queued requests of the lane `background`, or of the other lanes."""
        return [each for each in chain(self._retries, self._newcomers) if each.background == background]

    def body_bytes(self, *, background: bool = False) -> int:
        """Return the bytes of these requests that count in the signals for the policy."""
        return sum(pending.request.counted_bytes for pending in self.requests(background=background))

    def waits_s(self) -> list[float]:
        """Return the seconds for which each request has been queued, without the lane `background`."""
        now = self._clock()
        return [now - pending.since for pending in self.requests()]

    def traces(self, most: int) -> list[str]:
        """Return the `traceparent` of at most `most` traced requests, without the lane `background`."""
        requests = (pending.request for pending in self.requests())
        traced = (each.context for each in requests if each.context and each.trace is not UNTRACED)
        return [context.traceparent for context in islice(traced, most)]

    def enter(self, pending: Pending) -> None:
        """Add a request behind the others of its kind."""
        pending.since = self._clock()
        self._queued[pending] = None
        self.background += pending.background
        if pending.retry:
            self._retries[pending] = None
        else:
            self._newcomers.add(pending, pending.request.caller)
            self._by_key[pending.background][pending.request.caller.key] += 1

    def leave(self, pending: Pending) -> bool:
        """Remove a request. Returns whether it was queued."""
        if pending not in self._queued:
            return False
        del self._queued[pending]
        self.background -= pending.background
        if pending.retry:
            del self._retries[pending]
        else:
            self._newcomers.remove(pending, pending.request.caller)
            by_key, key = self._by_key[pending.background], pending.request.caller.key
            by_key[key] -= 1
            if not by_key[key]:
                del by_key[key]
        return True

    def refuse_for(self, newcomer: Pending, bound: int) -> Pending:
        """Return the request that a full queue refuses, so that no key fills the queue alone.

        That is the newcomer if its key has its share of `bound`. Otherwise it is the newest request of the
        key with the most, if that key has at least two more: with fewer, two keys could replace each other's
        requests for ever.
        """
        by_key, mine = self._by_key[newcomer.background], newcomer.request.caller.key
        own = by_key[mine]
        keys = len(by_key) + (mine not in by_key)
        key, most = max(by_key.items(), key=lambda item: item[1], default=(mine, 0))
        if own * keys >= bound or most < own + 2:
            return newcomer
        return next(
            each
            for each in reversed(self._queued)
            if each.request.caller.key == key and each.background == newcomer.background and not each.retry
        )

    def candidates(self) -> Iterator[Pending]:
        """Yield the requests that may get a reservation now: those that lost a replica, then newcomers.

        A request that lost a replica may need one model, so the next of its kind can overtake it. No newcomer
        overtakes another: each is yielded only after the one before has left the queue.
        """
        yield from list(self._retries)
        while (pending := self._newcomers.first()) is not None:
            yield pending

    def charge(self, pending: Pending, tokens: int, standard_share: float) -> None:
        """Charge the key of a released request with the prompt tokens that its replica will prefill.

        A request that lost a replica costs its key nothing more.
        """
        if not pending.retry:
            pending.request.charged_tokens = tokens
            self._newcomers.charge(pending.request.caller, tokens, standard_share)

    def settle(self, request: EngineRequest, tokens: int) -> None:
        """Charge the key of a request with the tokens that its engine has computed, in place of the estimate.

        A request that was never queued costs nothing: nobody waited for its place.
        """
        if (charged := request.charged_tokens) is not None:
            request.charged_tokens = None
            self._newcomers.settle(request.caller, tokens - charged)


def wake(waiter: asyncio.Future[bool], due: bool = False) -> None:
    """End a wait. `due` says that nothing has come: the time is over."""
    if not waiter.done():
        waiter.set_result(due)


@dataclass(slots=True, eq=False)
class KeepAlive:
    """Tells the clients of one model that they wait."""

    model: str
    interval_s: Callable[[], float]
    """Returns the seconds without output after which a client is told."""
    clock: Callable[[], float]
    """Seconds."""

    def begin(self, request: EngineRequest) -> None:
        """Count the silence of the client from now on."""
        request.silent_since, request.told_at = self.clock(), None

    async def wait(
        self,
        request: EngineRequest,
        waiter: asyncio.Future[bool],
        progress: Callable[[], ColdStartProgress],
        since: float | None = None,
        due: float = math.inf,
    ) -> None:
        """Wait until `waiter` is done, and tell the client if that is due. The caller repeats it.

        Args:
            request: Its `silent_since` becomes None when its client gets output.
            waiter: Done with False when something comes. At `due` it is done with True. `asyncio.wait` with a
                timeout would take 5 us more, for every stream.
            progress: Returns the progress that the client is told.
            since: Since when the client waits; by default since its last output.
            due: When the wait ends in any case.
        """
        if request.silent_since is None:
            self.begin(request)
        assert request.silent_since is not None
        last = request.silent_since if request.told_at is None else request.told_at
        tell_at = last + self.interval_s()
        delay_s = max(0.0, min(tell_at, due) - self.clock())
        timer = asyncio.get_running_loop().call_later(delay_s, wake, waiter, True)
        try:
            timed_out = await waiter
        finally:
            timer.cancel()
        now = self.clock()
        if not timed_out or now < tell_at or request.silent_since is None:
            return
        request.told_at = now
        if request.tell_wait is not None:
            told, waited_s = progress(), now - (request.silent_since if since is None else since)
            wait = ColdWait(self.model, told.phase, told.eta_s, waited_s, told.reason, told.place)
            await request.tell_wait(wait)
