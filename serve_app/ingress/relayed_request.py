"""One request on its way: from replica to replica, as long as those are lost."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError
from serve_app.ingress.admission import Admission
from serve_app.ingress.engine_channel import EngineStream, NeverBegunError
from serve_app.ingress.engine_channels import EngineChannels
from serve_app.ingress.refusals import replica_lost, unavailable
from serve_app.ingress.replica_choice import Slot
from serve_app.ingress.sent_so_far import MOST_BODY_BYTES, SentSoFar
from serve_app.wire.data_plane import BEAT_S, ENGINE_DEAD, ENGINE_KILLED, Answer, Piece, Sent

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
_MOVE_RETRY_S = 1.0


class EngineFailedError(ConnectionError):
    """The engine died with the request, by itself: nobody killed it."""


@dataclass(slots=True)
class _Part:
    """What one replica does of a request."""

    slot: Slot
    continues: bool = False
    """Whether others have begun it. What they generated is prompt to this one."""
    stream: EngineStream | None = None
    sent_at: float = 0.0


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
        self._part: _Part | None = None
        self._sent: SentSoFar | None = None
        self._blame = 0
        self._answered = False
        self._again = False
        self._looks_again_at = 0.0

    async def begin(self, sent: Sent | None = None) -> Answer:
        """The first of an answer, from the first replica that gives one.

        Raises:
            ApiError: no replica could take it, or replicas were lost one after another.
        """
        lost: Exception | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            slot = await self._admission.take(self._request, again=self._again)
            self._again = True
            self._part = _Part(slot)
            try:
                return await self._ask(self._part, sent)
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
        if answer.continuable and len(self._body) <= MOST_BODY_BYTES:
            self._sent = SentSoFar()
        else:
            self._body = b""
        moves = since = 0
        while True:
            assert self._part is not None
            assert self._part.stream is not None
            began = time.perf_counter()
            try:
                async for piece in self._part.stream.pieces(self._pass_on_now):
                    if piece.last:
                        _raise_if_lost(piece.lost)
                        self._told(piece)
                    if piece.data:
                        yield piece.data
                    self._passed_on(piece)
                    if self._sent is not None and self._had_better_move():
                        began = time.perf_counter()
                        if await self._move(self._sent, moves + 1):
                            break
                else:
                    return
            except ConnectionError as error:
                began = time.perf_counter()
                if self._sent is not None and self._sent.length - since >= _INNOCENT_TOKENS:
                    self._blame = 0
                self._lose(error)
                if self._sent is None or not await self._go_on(self._sent, moves + 1):
                    yield replica_lost(self._model).last_frames()
                    return
            moves += 1
            since = self._sent.length
            yield b": continued on another replica after %.2f s\n\n" % (time.perf_counter() - began)

    def _pass_on_now(self, piece: Piece) -> bool:
        """Write a piece to the client within the call that has received it, if nothing else is to be done."""
        write_now = self._request.write_now
        if write_now is None or self._part is None or self._part.slot.replica.unlisted_at is not None:
            return False
        if not write_now(piece.data):
            return False
        self._passed_on(piece)
        return True

    def _passed_on(self, piece: Piece) -> None:
        if self._sent is not None and not self._sent.passed_on(piece.data, piece.tokens):
            self._sent, self._body = None, b""

    def leave(self) -> None:
        """Give back its slot; what its engine still does for it ends."""
        if self._part is not None:
            self._end(self._part)
            self._part = None

    async def _ask(self, part: _Part, sent: Sent | None) -> Answer:
        replica, part.sent_at = part.slot.replica, time.perf_counter()
        part.continues = sent is not None
        try:
            channel = await self._channels.to(replica)
            self._request.expected_cached_tokens = self._admission.replicas.expected_tokens(part.slot)
            part.stream = channel.call(self._request, self._body, sent)
            answer = await part.stream.answer()
            _raise_if_lost(answer.lost)
            if answer.streamed:
                await part.stream.begun()
        except NeverBegunError:
            replica.failures += 1  # or it would always have the least load, and be tried again and again
            raise
        self._answered = True
        if answer.status < HTTPStatus.BAD_REQUEST:
            self._admission.replicas.answered(part.slot)
            if not answer.streamed:
                self._told(answer)
        return answer

    def _told(self, end: Answer | Piece) -> None:
        """Note what an engine tells of the prompt at the end of its answer."""
        request = self._request
        request.cached_tokens, request.prompt_tokens = end.cached_tokens, end.prompt_tokens
        if self._part is not None and not self._part.continues:
            self._admission.replicas.learned(self._part.slot, end.cached_tokens, end.prompt_tokens)

    async def _go_on(self, sent: SentSoFar, moves: int) -> bool:
        """Have another replica go on with the stream of one that is lost. Returns whether one does."""
        if self._blame >= _MOST_BLAME:
            return False
        with self._sent_again():
            try:
                answer = await self.begin(sent.told(self._request.ttft_s or 0.0, moves))
            except ApiError as error:
                logger.warning("request %s: cannot be continued: %s", self._request.request_id, error.message)
                return False
        if not answer.streamed:
            logger.warning("request %s: cannot be continued: %s", self._request.request_id, answer.body)
        return answer.streamed

    def _had_better_move(self) -> bool:
        """Whether its replica is to be emptied, and none with room was looked for in the last second."""
        assert self._part is not None
        replica = self._part.slot.replica
        if replica.unlisted_at is None or not self._admission.is_to_be_emptied(replica):
            return False
        now = time.perf_counter()
        if now < self._looks_again_at:
            return False
        self._looks_again_at = now + _MOVE_RETRY_S
        return True

    async def _move(self, sent: SentSoFar, moves: int) -> bool:
        """Have another replica go on with a stream whose replica drains. Returns whether one does now.

        Until it does, the present one goes on; what it generates meanwhile is not read.
        """
        with self._sent_again():
            slot = self._admission.take_for_move(self._request, sent.length)
            if slot is None:
                return False
            part, moved = _Part(slot), False
            try:
                answer = await self._ask(part, sent.told(self._request.ttft_s or 0.0, moves))
                moved = answer.streamed
                if answer.status == HTTPStatus.CONFLICT:
                    self._looks_again_at = math.inf  # every engine refuses it
            except ConnectionError as error:
                logger.warning("request %s: not moved: %s", self._request.request_id, error)
            finally:
                if not moved:
                    self._end(part)
        if moved:
            if self._request.prefix is not None:
                self._admission.replicas.prefixes.holds(slot.replica.replica_id, self._request.prefix)
            self.leave()
            self._part = part
        return moved

    @contextmanager
    def _sent_again(self) -> Iterator[None]:
        """The request has its body, whose length the pick goes by, and only meanwhile."""
        self._request.body = self._body
        try:
            yield
        finally:
            self._request.body = b""

    def _end(self, part: _Part) -> None:
        if part.stream is not None:
            part.stream.close()
        self._admission.replicas.release(part.slot)

    def _lose(self, error: Exception) -> None:
        logger.warning("request %s: replica lost: %s", self._request.request_id, error)
        self._blame += self._blame_for(error)
        self.leave()

    def _blame_for(self, error: Exception) -> int:
        """How much the loss of its replica speaks against the request.

        Nothing, if the replica had been dead or standing still when the request came. Little, if that is not
        sure, or if its process was killed or cut off: clusters lose nodes in a row, and few requests end a
        process so. But one that has no answer so far may have ended each process that tried to read it.
        """
        if isinstance(error, NeverBegunError) or self._part is None:
            return 0
        still_s = self._part.slot.replica.still_s
        if still_s:
            there_s = time.perf_counter() - self._part.sent_at
            return 0 if there_s < still_s else _FAILED if there_s >= still_s + BEAT_S else _TAKEN
        return _FAILED if isinstance(error, EngineFailedError) or not self._answered else _TAKEN


def _raise_if_lost(lost: str) -> None:
    if lost == ENGINE_DEAD:
        raise NeverBegunError("the replica's engine core was dead already")
    if lost == ENGINE_KILLED:
        raise ConnectionError("the replica's engine core was killed")
    if lost:
        raise EngineFailedError("the replica's engine core died")
