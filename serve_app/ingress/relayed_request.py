"""One request on its way: from replica to replica, as long as those are lost."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus

from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import DONE, ApiError
from serve_app.ingress.admission import Admission
from serve_app.ingress.engine_channel import EngineStream, NeverBegunError
from serve_app.ingress.engine_channels import EngineChannels
from serve_app.ingress.refusals import replica_lost, unavailable
from serve_app.ingress.replica_choice import Replica, Slot
from serve_app.ingress.sent_so_far import SentSoFar
from serve_app.wire.continuation import Continuation
from serve_app.wire.data_plane import BEAT_S, ENGINE_DEAD, ENGINE_KILLED, Answer, Piece

logger = logging.getLogger("ray.serve")

# Ray needs about 4 s to take a replica whose engine core died out of its routing (three health
# checks, one a second); the waits of 0.2, 0.4, … s between seven attempts outlast that.
_ATTEMPTS = 7
_BACKOFF_S = 0.2
# An engine that dies with a request may have died of it. So each request has a retry budget: it is spent by
# two engines that failed by themselves, by four that were killed, or by one and two. A replica that has
# generated so many tokens of the request shows that what was spent before it was not the request's fault.
_RETRY_BUDGET = 4
_FAILED, _KILLED = 2, 1
_HARMLESS_TOKENS = 16
_MOVE_RETRY_S = 1.0
_COME_LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


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
    since: int = 0
    """Tokens of the stream that others have generated."""
    spent_before: int = 0
    """What of the retry budget had been spent before this replica answered."""


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
        """What has been passed on of a stream that another replica can go on with."""
        self._spent = 0
        """Of the retry budget."""
        self._answered = False
        self._complete = False
        """Whether the stream's last event has been passed on."""
        self._again = False
        self._looks_again_at = 0.0

    async def begin(self, continuation: Continuation | None = None) -> Answer:
        """The first of an answer, from the first replica that gives one.

        A request that has lost a replica is not given up for another replica's 429 or 503.

        Raises:
            ApiError: no replica could take it, replicas were lost one after another, or no replica serves the
                model that has begun the stream.
        """
        lost: Exception | None = None
        refused: set[Replica] = set()
        for attempt in range(1, _ATTEMPTS + 1):
            again, self._again = self._again, True
            identity = None if continuation is None else continuation.identity
            slot = await self._admission.take(self._request, again=again, identity=identity, refused=refused)
            self._part = _Part(slot)
            try:
                answer = await self._ask(self._part, continuation)
            except ConnectionError as error:
                self._lose(error)
                lost = error
            else:
                if not again or answer.status not in _COME_LATER or attempt == _ATTEMPTS:
                    return answer
                refused.add(slot.replica)
                self._leave()
            if self._spent >= _RETRY_BUDGET:
                break
            # The lost replica is not counted as busy while Ray finds out about it.
            await asyncio.sleep(_BACKOFF_S * attempt)
        raise unavailable(self._model, "replicas were lost one after another.") from lost

    async def events(self, answer: Answer) -> AsyncIterator[bytes]:
        """The frames of a stream that has begun with `answer`, whichever replicas they come from."""
        assert self._part is not None
        self._sent = SentSoFar(self._part.slot.replica.identity, self._request.kept)
        if not (answer.continuable and self._sent.keep(self._body)):
            self._forget()
        moves = 0
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
                    if self._sent is not None and not piece.last and self._should_migrate():
                        began = time.perf_counter()
                        if await self._move(self._sent, moves + 1):
                            break
                else:
                    return
            except ConnectionError as error:
                began = time.perf_counter()
                if self._complete:
                    return
                self._lose(error)
                if self._sent is None or not await self._go_on(self._sent, moves + 1):
                    yield replica_lost(self._model).last_frames()
                    return
            moves += 1
            yield b": continued on another replica after %.2f s\n\n" % (time.perf_counter() - began)

    def _pass_on_now(self, piece: Piece) -> bool:
        """Write a piece to the client within the call that has received it, if nothing else is to be done."""
        write_now = self._request.state.write_now
        if write_now is None or self._part is None or self._part.slot.replica.unlisted_at is not None:
            return False
        if not write_now(piece.data):
            return False
        self._passed_on(piece)
        return True

    def _passed_on(self, piece: Piece) -> None:
        if piece.data.endswith(DONE):  # a replica that went on with the stream would say it once more
            self._complete = True
            self._forget()
        elif self._sent is not None and not self._sent.passed_on(piece.data, piece.tokens):
            self._forget()

    def _forget(self) -> None:
        """Keep nothing of the stream any more: no other replica is to go on with it."""
        self._sent, self._body = None, b""
        if self._request.kept is not None:
            self._request.kept.release()

    def end(self) -> None:
        """Give back its slot and its memory; what its engine still does for it ends."""
        self._leave()
        self._forget()

    def _leave(self) -> None:
        if self._part is not None:
            self._end(self._part)
            self._part = None

    async def _ask(self, part: _Part, continuation: Continuation | None) -> Answer:
        replica, part.sent_at = part.slot.replica, time.perf_counter()
        part.continues = continuation is not None
        part.since = 0 if self._sent is None else self._sent.length
        try:
            channel = await self._channels.to(replica)
            expected = self._admission.replicas.expected_tokens(part.slot)
            part.stream = channel.call(self._request, self._body, continuation, expected)
            answer = await part.stream.answer()
            _raise_if_lost(answer.lost)
            if answer.streamed:
                await part.stream.begun()
        except NeverBegunError:
            replica.failures += 1  # or it would always have the least load, and be tried again and again
            raise
        self._answered = True
        part.spent_before = self._spent
        if continuation is None and self._sent is not None:
            self._sent.identity = replica.identity  # nothing had been passed on of what another model began
        if answer.status < HTTPStatus.BAD_REQUEST:
            self._admission.replicas.answered(part.slot)
            if not answer.streamed:
                self._told(answer)
        return answer

    def _told(self, end: Answer | Piece) -> None:
        """Note what an engine tells of the prompt at the end of its answer."""
        state = self._request.state
        state.cached_tokens, state.prompt_tokens = end.cached_tokens, end.prompt_tokens
        if self._part is not None and not self._part.continues:
            self._admission.replicas.learned(self._part.slot, end.cached_tokens, end.prompt_tokens)

    async def _go_on(self, sent: SentSoFar, moves: int) -> bool:
        """Have another replica go on with the stream of one that is lost. Returns whether one does."""
        if self._spent >= _RETRY_BUDGET:
            return False
        try:
            answer = await self.begin(sent.continuation(self._request.state.ttft_s or 0.0, moves))
        except ApiError as error:
            logger.warning("request %s: cannot be continued: %s", self._request.request_id, error.message)
            return False
        if not answer.streamed:
            logger.warning("request %s: cannot be continued: %s", self._request.request_id, answer.body)
        return answer.streamed

    def _should_migrate(self) -> bool:
        """Whether its replica has drained for long enough, and no other was looked for in the last second."""
        assert self._part is not None
        replica = self._part.slot.replica
        if replica.unlisted_at is None or not self._admission.is_draining_too_long(replica):
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
        slot = self._admission.take_for_move(self._request, sent.length, sent.identity)
        if slot is None:
            return False
        part, moved = _Part(slot), False
        try:
            answer = await self._ask(part, sent.continuation(self._request.state.ttft_s or 0.0, moves))
            moved = answer.streamed
            if answer.status == HTTPStatus.CONFLICT:
                self._looks_again_at = math.inf  # every engine refuses it
        except ConnectionError as error:
            logger.warning("request %s: not moved: %s", self._request.request_id, error)
            cost = self._cost_of(error, part)
            self._spent += cost
            if cost >= _FAILED or self._spent >= _RETRY_BUDGET:
                self._looks_again_at = math.inf  # it can stay where it is, and others lose no engine
        finally:
            if not moved:
                self._end(part)
        if moved:
            if self._request.prefix is not None:
                self._admission.replicas.prefixes.holds(slot.replica.replica_id, self._request.prefix)
            self._leave()
            self._part = part
        return moved

    def _end(self, part: _Part) -> None:
        if part.stream is not None:
            part.stream.close()
        self._admission.replicas.release(part.slot)

    def _lose(self, error: ConnectionError) -> None:
        logger.warning("request %s: replica lost: %s", self._request.request_id, error)
        if self._part is not None:
            generated = 0 if self._sent is None else self._sent.length - self._part.since
            if generated >= _HARMLESS_TOKENS:
                self._spent -= self._part.spent_before
            self._spent += self._cost_of(error, self._part)
        self._leave()

    def _cost_of(self, error: ConnectionError, part: _Part) -> int:
        """How much of the retry budget the loss of a replica takes.

        Nothing, if the replica had been dead or standing still when the request came. Little, if that is not
        sure, or if its process was killed or cut off: clusters lose nodes in a row, and few requests end a
        process so. But one that has no answer so far may have ended each process that tried to read it.
        """
        if isinstance(error, NeverBegunError):
            return 0
        still_s = part.slot.replica.still_s
        if still_s:
            there_s = time.perf_counter() - part.sent_at
            return 0 if there_s < still_s else _FAILED if there_s >= still_s + BEAT_S else _KILLED
        return _FAILED if isinstance(error, EngineFailedError) or not self._answered else _KILLED


def _raise_if_lost(lost: str) -> None:
    if lost == ENGINE_DEAD:
        raise NeverBegunError("the replica's engine core was dead already")
    if lost == ENGINE_KILLED:
        raise ConnectionError("the replica's engine core was killed")
    if lost:
        raise EngineFailedError("the replica's engine core died")
