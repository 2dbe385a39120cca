"""The two versions of one model: which of them a conversation gets, copies for the new one, and counts.

The hash of a conversation's key decides: the same conversations on every ingress replica, and a larger share
only adds conversations. While the new version has no replica, or too few for its share, the old version takes
over. The old version also answers requests that the new one fails before the first byte. So a version that
crashes costs only the streams that it has begun.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash
from starlette.types import Message

from serve_app.api.answer_watch import COPIES, AnswerWatch
from serve_app.api.body_memory import BodyMemory, BodyShare
from serve_app.api.engine_client import GENERATING, EngineReply, EngineRequest, Traffic
from serve_app.api.engine_response import EngineResponse, status_outcome, stays
from serve_app.api.errors import ApiError
from serve_app.ingress.relay import RelayClient
from serve_app.settings.knobs import Knobs
from serve_app.wire.version_documents import put_counts, put_share, read_shares
from serve_app.wire.versions import Share, in_force

logger = logging.getLogger("ray.serve")

_MOST_COPIES = 16
"""Copies of one ingress replica at once. Further ones are dropped."""
_BUSIER = 2.0
"""A version whose replicas have so many times the mean requests of all replicas gets no more."""
_EVEN = 1.5
"""Latencies are compared while replicas of the new version get up to so many times the requests of others. A
step takes at most so many times as long then, which the rules tolerate."""
_READ_S = 0.25
_COUNTS_TURNS = 4


class Side(NamedTuple):
    """One of the two versions."""

    name: str
    client: RelayClient
    traffic: Traffic

    @property
    def ready(self) -> int:
        return len(self.client.admission.replicas)

    @property
    def in_flight(self) -> int:
        """The requests of this process, without the lane `background`."""
        return self.client.admission.replicas.places.total()


@dataclass(slots=True, eq=False)
class Versions(Traffic):
    """Runs the requests of a model with a new version, and gets their events.

    Use it only in the event loop of the ingress.
    """

    old: Side
    new: Side
    start: Share
    """The share that the settings give."""
    knobs: Callable[[], Knobs]
    """Returns the present knobs of the new version."""
    same_weights: bool = True
    """Whether both have the weights that adapters were made for. If not, the old version has the adapters."""
    memory: BodyMemory | None = None
    """Counts the bodies of copies; None before the first request."""
    share: Share = field(init=False)
    counts: dict[str, Counter[str]] = field(init=False)
    """The counts of both versions by name, while they are compared."""
    _copies: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.share = self.start
        self.counts = {self.old.name: Counter(), self.new.name: Counter()}

    @property
    def compares(self) -> bool:
        return 0.0 < self.share.share < 1.0 or self.share.shadow > 0.0

    @property
    def alone(self) -> bool:
        """Whether the old version answers no request, not even one that the new version fails."""
        return self.share.share >= 1.0 and not self.old.ready

    def apply(self, stored: Share) -> None:
        """Apply the stored share, if it replaces the settings."""
        self.share = share = in_force(self.start, stored)
        ends = self.knobs().canary.streams == "end" and not share.share
        if ends and not self.new.client.ends:
            self.new.client.end_streams()
        self.new.client.ends = ends
        if not self.compares:
            self.counts = {self.old.name: Counter(), self.new.name: Counter()}

    def opened(self, request: EngineRequest) -> None:
        is_new = self._is_new(request)
        side = self.new if is_new else self.old
        request.version = side.name
        if is_new and request.adapter is None:
            request.alias = request.asked_model  # the engine knows only the version's name
        if self.compares and self.new.ready:
            part = self.share.share
            even = part * self.old.ready <= _EVEN * (1.0 - part) * self.new.ready
            request.watch = AnswerWatch(self.counts[side.name], timed=even)
        side.traffic.opened(request)

    def first_byte(self, request: EngineRequest) -> None:
        self._side(request).traffic.first_byte(request)

    def rejected(self, request: EngineRequest, error: ApiError) -> None:
        self._side(request).traffic.rejected(request, error)

    def closed(self, request: EngineRequest) -> None:
        self._side(request).traffic.closed(request)
        if request.watch is not None:
            request.watch.count(request)

    @asynccontextmanager
    async def call(self, request: EngineRequest) -> AsyncIterator[EngineReply]:
        """Run `request` on its version, or on the old one if the new one fails before it answers.

        Raises:
            ApiError: as `RelayClient.call`.
        """
        async with AsyncExitStack() as opened:
            if self._side(request) is self.new:
                reply = await self._call_new(request, opened)
            else:
                reply = await opened.enter_async_context(self.old.client.call(request))
                if status_outcome(reply.status) == "ok":
                    self._copy(request)
            yield reply

    def _side(self, request: EngineRequest) -> Side:
        return self.new if request.version == self.new.name else self.old

    def _is_new(self, request: EngineRequest) -> bool:
        share = self.share.share
        place = fraction(self.new.name, request.conversation or request.request_id)
        if place >= share or (request.adapter is not None and not self.same_weights):
            return False
        if not self.new.ready:
            return self.alone
        if not self.old.ready:
            return True
        mean = (self.new.in_flight + self.old.in_flight) / (self.new.ready + self.old.ready)
        return self.new.in_flight / self.new.ready <= _BUSIER * mean + self.knobs().queue_target_per_replica

    async def _call_new(self, request: EngineRequest, opened: AsyncExitStack) -> EngineReply:
        """Return the new version's reply, or the old one's if the new one fails or refuses the request.

        A refusal is a failure of the new version if the old one accepts the request.
        """
        alone, watch = self.alone, request.watch
        try:
            reply = await opened.enter_async_context(self.new.client.call(request))
            outcome = status_outcome(reply.status)
        except ApiError as error:
            if alone:
                raise
            outcome = status_outcome(error.status)
        else:
            if alone or outcome == "ok":
                return reply
        await opened.aclose()
        request.watch = None  # the answer is the old version's
        if watch is not None and outcome == "error":
            watch.fail()
        reply = await opened.enter_async_context(self.old.client.call(request))
        if watch is not None and status_outcome(reply.status) == "ok":
            self.counts[self.new.name]["rescued"] += 1
            if outcome == "client_error":
                watch.fail()
        return reply

    def _copy(self, request: EngineRequest) -> None:
        """Send a copy of some requests to the new version, if it has room."""
        memory = self.memory
        if memory is None or fraction("copy", request.request_id) >= self.share.shadow:
            return
        busy = len(self._copies) >= _MOST_COPIES or 4 * memory.used_bytes > memory.limit_bytes
        plain = request.adapter is None and request.operation in GENERATING
        if busy or not self.new.ready or not plain or request.is_background:
            return
        kept = BodyShare(memory, "copies for new versions")
        try:
            kept.grow(len(request.body))
        except ApiError:
            return
        copy = EngineRequest(
            request.operation,
            request.body,
            f"{request.request_id}-copy",
            wants_stream=request.wants_stream,
            cache_salt=request.cache_salt,
            model=request.model,
            alias=request.asked_model,
            caller=COPIES,
            version=self.new.name,
            watch=(watch := AnswerWatch(self.counts[self.new.name])),
        )
        task = asyncio.create_task(self._run_copy(copy, watch, kept))
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)

    async def _run_copy(self, copy: EngineRequest, watch: AnswerWatch, kept: BodyShare) -> None:
        try:
            response = EngineResponse(self.new.client, copy, self.new.traffic, kept.release)
            await response({"type": "http"}, stays, _drop)
        except Exception:
            logger.exception("request %s: the copy failed", copy.request_id)
        if copy.outcome == "client_error":
            copy.outcome = "error"  # the old version has accepted the same request
        watch.count(copy)


async def _drop(message: Message) -> None:
    """Send nothing: nobody reads the answer to a copy."""


def fraction(salt: str, key: str) -> float:
    """Return a number from 0 to below 1, the same in every process, and evenly spread over keys."""
    return xxhash.xxh3_64_intdigest(f"{salt}\0{key}".encode()) / 2**64


@dataclass(slots=True, eq=False)
class VersionShares:
    """Follows and changes the shares of an application's versions, in one ingress replica."""

    app: str
    replica: str
    versions: Sequence[Versions]

    async def set(
        self, model: str, version: str | None, share: float, shadow: float | None, sender: str
    ) -> Share:
        """Change the share of a model's version, for `sender`. Returns it as it is in force here.

        Raises:
            ApiError: 400 if the model has no such version; 503 if Ray's GCS does not answer.
        """
        found = next((each for each in self.versions if each.old.name == model), None)
        if found is None:
            known = ", ".join(repr(each.old.name) for each in self.versions) or "no model"
            raise ApiError(400, f"model = {model[:200]!r}: has no version; {known} has one", param="model")
        name = found.new.name.removeprefix(f"{model}@")
        if version not in (None, name):
            raise ApiError(400, f"version = {version!r}: must be {name!r}", param="version")
        copies = (found.share.shadow if share else 0.0) if shadow is None else shadow
        stored = Share(share, copies, found.start.start, f"set by {sender}", time.time())
        try:
            async with asyncio.timeout(5.0):
                await asyncio.to_thread(put_share, self.app, found.new.name, stored)
        except Exception as error:
            why = f"Ray's GCS did not store the share: {type(error).__name__}."
            raise ApiError(503, why, code="share_unavailable", headers={"Retry-After": "5"}) from None
        found.apply(stored)
        logger.info("model %s: share %g, shadow %g, %s", found.new.name, share, copies, stored.why)
        return found.share

    async def run(self) -> None:
        """Apply the stored shares four times a second, and write the counts once. It never returns."""
        failing, turn = False, 0
        while True:
            try:
                stored = await asyncio.to_thread(read_shares, self.app)
                for each in self.versions:
                    if (share := stored.get(each.new.name)) is not None:  # else it has just been removed
                        each.apply(share)
                turn += 1
                compared = [each.counts for each in self.versions if each.compares]
                if compared and not turn % _COUNTS_TURNS:
                    counts = {name: dict(of) for each in compared for name, of in each.items()}
                    await asyncio.to_thread(put_counts, self.app, self.replica, time.time(), counts)
                failing = False
            except Exception:
                # The GCS does not answer. The last shares stay.
                if not failing:
                    logger.warning("the shares of versions cannot be read", exc_info=True)
                failing = True
            await asyncio.sleep(_READ_S)
