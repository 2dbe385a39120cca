"""One request on its way: from replica to replica, as long as those are lost."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from http import HTTPStatus

from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError
from serve_app.ingress.admission import Admission
from serve_app.ingress.engine_channel import EngineStream, NeverBegunError
from serve_app.ingress.engine_channels import EngineChannels
from serve_app.ingress.refusals import replica_lost, unavailable
from serve_app.ingress.replica_choice import Slot
from serve_app.ingress.sent_so_far import MOST_BODY_BYTES, SentSoFar
from serve_app.wire.data_plane import Answer, Sent

logger = logging.getLogger("ray.serve")

# Ray needs about 4 s to take a replica whose engine core died out of its routing (three health
# checks, one a second); the waits of 0.2, 0.4, … s between seven attempts outlast that.
_ATTEMPTS = 7
_BACKOFF_S = 0.2
# An engine that dies with a request may have died of it. So the request is not tried on one replica after
# another: two engines that failed by themselves end it, or four replicas that were taken from it, or one and
# two; unless it has gone on for so many tokens meanwhile.
_MOST_BLAME = 4
_FAILED, _TAKEN = 2, 1
_INNOCENT_TOKENS = 16
_DEAD, _DIED, _KILLED = b'"engine_dead"', b'"engine_died"', b'"engine_killed"'
"""Codes of the error of an engine core that was dead already, and of those that died with the request, by
themselves or killed. Within text the quotes would be escaped."""


class EngineFailedError(ConnectionError):
    """The engine died with the request, by itself: nobody killed it."""


class RelayedRequest:
    """A request, and the replica that it is on.

    Args:
        model: The model's name.
        request: Its body is kept to its end if it is small enough to be sent again.
    """

    def __init__(
        self, model: str, request: EngineRequest, admission: Admission, channels: EngineChannels
    ) -> None:
        self._model = model
        self._request = request
        self._body = request.body
        self._admission = admission
        self._channels = channels
        self._slot: Slot | None = None
        self._stream: EngineStream | None = None
        self._sent_at = 0.0
        self._blame = 0
        self._answered = False
        self._again = False

    async def begin(self, sent: Sent | None = None) -> Answer:
        """The first of an answer, from the first replica that gives one.

        Raises:
            ApiError: no replica could take it, or replicas were lost one after another.
        """
        lost: Exception | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._ask(sent)
            except ConnectionError as error:
                self._lose(error)
                lost = error
            if self._blame >= _MOST_BLAME:
                break
            # The lost replica is not counted as busy while Ray finds out about it.
            await asyncio.sleep(_BACKOFF_S * attempt)
        raise unavailable(self._model, "replicas were lost one after another.") from lost

    async def events(self, answer: Answer) -> AsyncIterator[bytes]:
        """The frames of a stream that has begun with `answer`, whichever replicas they come from."""
        kept = answer.continuable and len(self._body) <= MOST_BODY_BYTES
        sent = SentSoFar() if kept else None
        if not kept:
            self._body = b""
        moves = since = 0
        while True:
            try:
                assert self._stream is not None
                async for piece in self._stream.pieces():
                    if piece.last:
                        _raise_if_died(piece.data)
                    if piece.data:
                        yield piece.data
                    if sent is not None:
                        sent.passed_on(piece.data, piece.tokens)
                        if sent.too_long:
                            sent, self._body = None, b""
                return
            except ConnectionError as error:
                began = time.perf_counter()
                if sent is not None and sent.length - since >= _INNOCENT_TOKENS:
                    self._blame = 0
                self._lose(error)
                moves += 1
                if sent is None or not await self._move(sent, moves):
                    yield replica_lost(self._model).last_frames()
                    return
                since = sent.length
                yield b": continued on another replica after %.2f s\n\n" % (time.perf_counter() - began)

    def leave(self) -> None:
        """Give back its slot; what its engine still does for it ends."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._slot is not None:
            self._admission.replicas.release(self._slot)
            self._slot = None

    async def _ask(self, sent: Sent | None) -> Answer:
        self._slot = slot = await self._admission.take(self._request, again=self._again)
        self._again = True
        replica, self._sent_at = slot.replica, time.perf_counter()
        try:
            channel = await self._channels.to(replica)
            self._stream = channel.call(self._request, self._body, sent)
            answer = await self._stream.answer()
            if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
                _raise_if_dead(answer.body)
            if answer.streamed:
                await self._stream.begun()
        except NeverBegunError:
            replica.failures += 1  # or it would always have the least load, and be tried again and again
            raise
        self._answered = True
        if answer.status < HTTPStatus.BAD_REQUEST:
            self._admission.replicas.answered(slot)
        return answer

    async def _move(self, sent: SentSoFar, moves: int) -> bool:
        """Have another replica go on with the stream. Returns whether one does."""
        if self._blame >= _MOST_BLAME:
            return False
        self._request.body = self._body  # the pick goes by its length
        try:
            answer = await self.begin(sent.told(self._request.ttft_s or 0.0, moves))
        except ApiError as error:
            logger.warning("request %s: cannot be continued: %s", self._request.request_id, error.message)
            return False
        finally:
            self._request.body = b""
        if not answer.streamed:
            logger.warning("request %s: cannot be continued: %s", self._request.request_id, answer.body)
        return answer.streamed

    def _lose(self, error: Exception) -> None:
        logger.warning("request %s: replica lost: %s", self._request.request_id, error)
        self._blame += self._blame_for(error)
        self.leave()

    def _blame_for(self, error: Exception) -> int:
        """How much the loss of its replica speaks against the request.

        Nothing, if the replica had been dead or standing still when the request came. Little, if its process
        was killed or cut off: clusters lose nodes in a row, and few requests end a process so. But one that
        has no answer so far may have ended each process that tried to read it.
        """
        if isinstance(error, NeverBegunError) or self._slot is None:
            return 0
        still_s = self._slot.replica.still_s
        if still_s:
            return _FAILED if time.perf_counter() - self._sent_at >= still_s else 0
        return _FAILED if isinstance(error, EngineFailedError) or not self._answered else _TAKEN


def _raise_if_dead(body: bytes) -> None:
    if _DEAD in body:
        raise NeverBegunError("the replica's engine core was dead already")
    _raise_if_died(body)


def _raise_if_died(data: bytes) -> None:
    if _DIED in data:
        raise EngineFailedError("the replica's engine core died")
    if _KILLED in data:
        raise ConnectionError("the replica's engine core was killed")
