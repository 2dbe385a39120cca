"""The relay: a request's way to a replica, to the next one if that is lost, and the answer's way back."""

import asyncio
import logging
import math
import re
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

from serve_app.api.body import BodyShare
from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import DONE, ApiError
from serve_app.ingress.admission import Admission
from serve_app.ingress.engine_channel import EngineChannels, EngineStream, NeverBegunError
from serve_app.ingress.refusals import replica_lost, unavailable
from serve_app.ingress.replica_choice import Replica, Reservation
from serve_app.ingress.retry_budget import RetryBudget, raise_if_lost
from serve_app.settings.tree import ModelSettings
from serve_app.wire.continuation import Continuation
from serve_app.wire.data_plane import Answer, Piece

logger = logging.getLogger("ray.serve")

# Ray needs about 4 s to take a replica whose engine core died out of its routing (three health
# checks, one a second); the waits of 0.2, 0.4, … s between seven attempts outlast that.
_ATTEMPTS = 7
_BACKOFF_S = 0.2
_MOVE_RETRY_S = 1.0
_COME_LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
MOST_BODY_BYTES = 256 << 10
MOST_TOKENS = 64 << 10
"""Beyond these a stream is not continued: it keeps at most 256 KiB of body and 256 KiB of token ids."""
_RESERVED_TOKENS = 1024
"""Memory is reserved for so many tokens at a time."""
_TOKEN_BYTES = 4
_CREATED = re.compile(rb'"created":(\d+)')


class RelayClient:
    """Reaches a model's engine replicas over the ports they open: the `EngineClient` of the ingress.

    Args:
        admission: Finds replicas, and queues requests while there is none.
        channels: The connections to engine replicas, shared with whatever listens to their heartbeats.
    """

    def __init__(self, model: ModelSettings, admission: Admission, channels: EngineChannels) -> None:
        self._model = model.name
        self._hang_timeout_s = model.engine_hang_timeout_s
        self._admission = admission
        self._channels = channels
        admission.replicas.notify_trouble(self._give_up)

    @asynccontextmanager
    async def call(self, request: EngineRequest) -> AsyncIterator[EngineReply]:
        """Run `request` on a replica. One that is lost is replaced, within a stream too where it can be.

        Raises:
            ApiError: no replica could take it, or replicas were lost one after another.
        """
        relayed = RelayedRequest(self._model, request, self._admission, self._channels)
        try:
            answer = await relayed.begin()
            headers = {name: value for name, value in answer.headers.items() if name == "Retry-After"}
            stream = relayed.events(answer) if answer.streamed else None
            yield EngineReply(answer.status, b"" if answer.streamed else answer.body, stream, headers)
        finally:
            relayed.end()

    def _give_up(self, replica: Replica) -> None:
        """Send the requests on a replica that hangs or is dead to another one of the same model.

        If there is none, they stay until the replica works again or Ray replaces it. Ray does not check a
        draining replica: they leave it after the same time.
        """
        hung = replica.unlisted_at is not None and replica.still_s >= self._hang_timeout_s
        if hung or self._admission.replicas.has_substitute(replica):
            self._channels.close(replica, replica.trouble)


class Delivered:
    """The delivered tokens of one stream: those whose events the client was sent.

    Args:
        identity: The model that generates them.
        share: Takes the bytes that are kept: those of the request's body and those of the tokens. None where
            nobody counts them.
    """

    __slots__ = ("_created", "_reserved", "_share", "_tokens", "count", "identity")

    def __init__(self, identity: str, share: BodyShare | None) -> None:
        self.identity = identity
        self.count = 0
        """Tokens, over all sequences."""
        self._share = share
        self._reserved = 0
        self._tokens: list[array[int]] = []
        self._created: int | None = None

    def keep(self, body: bytes) -> bool:
        """Count a body that is kept to be sent again. Returns whether it is small enough and fits in."""
        return len(body) <= MOST_BODY_BYTES and self._reserve(len(body))

    def note(self, piece: Piece) -> bool:
        """Note a piece whose events the client was sent. Returns whether no more is kept than may be."""
        if self._created is None and piece.data:
            found = _CREATED.search(piece.data)
            self._created = int(found[1]) if found else 0
        for sequence, ids in piece.tokens:
            while len(self._tokens) <= sequence:
                self._tokens.append(array("I"))
            self._tokens[sequence].extend(ids)
            self.count += len(ids)
        if self.count <= self._reserved:
            return self.count <= MOST_TOKENS
        more = -(-(self.count - self._reserved) // _RESERVED_TOKENS) * _RESERVED_TOKENS
        self._reserved += more
        return self.count <= MOST_TOKENS and self._reserve(more * _TOKEN_BYTES)

    def continuation(self, ttft_s: float, moves: int) -> Continuation | None:
        """The record for the next engine; None if the client has been sent nothing."""
        if self._created is None:
            return None
        tokens = [list(ids) for ids in self._tokens] or [[]]
        return Continuation(tokens, self._created, ttft_s, moves, self.identity)

    def _reserve(self, size: int) -> bool:
        try:
            if self._share is not None:
                self._share.grow(size)
        except ApiError:  # without memory the stream goes on as one that cannot be continued
            return False
        return True


@dataclass(slots=True)
class _Attempt:
    """A request on one replica."""

    reservation: Reservation
    continues: bool = False
    """Whether other engines have begun the answer. What they generated is prompt to this one."""
    stream: EngineStream | None = None
    sent_at: float = 0.0
    delivered_before: int = 0
    """Tokens of the stream that others have generated."""
    spent_before: int = 0
    """The retry budget spent before this replica answered."""


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
        self._attempt: _Attempt | None = None
        self._delivered: Delivered | None = None
        """The delivered tokens of a stream that another replica can go on with; else None."""
        self._budget = RetryBudget()
        self._complete = False
        """Whether the client has been sent the stream's last event."""
        self._again = False
        self._looks_again_at = 0.0

    async def begin(self, continuation: Continuation | None = None) -> Answer:
        """The first message of an answer, from the first replica that gives one.

        A request that has lost a replica is not given up for another replica's 429 or 503.

        Raises:
            ApiError: no replica could take it, replicas were lost one after another, or no replica serves the
                model that has begun the stream.
        """
        lost: Exception | None = None
        refused: set[Replica] = set()
        identity = None if continuation is None else continuation.identity
        for number in range(1, _ATTEMPTS + 1):
            again, self._again = self._again, True
            reservation = await self._admission.take(
                self._request, again=again, identity=identity, refused=refused
            )
            self._attempt = _Attempt(reservation)
            try:
                answer = await self._ask(self._attempt, continuation)
            except ConnectionError as error:
                self._lose(error)
                lost = error
            else:
                if not again or answer.status not in _COME_LATER or number == _ATTEMPTS:
                    return answer
                refused.add(reservation.replica)
                self._leave()
            if self._budget.is_spent:
                break
            # The lost replica is not counted as busy while Ray finds out about it.
            await asyncio.sleep(_BACKOFF_S * number)
        raise unavailable(self._model, "replicas were lost one after another.") from lost

    async def events(self, answer: Answer) -> AsyncIterator[bytes]:
        """The frames of a stream that has begun with `answer`, whichever replicas they come from."""
        assert self._attempt is not None
        self._delivered = Delivered(self._attempt.reservation.replica.identity, self._request.kept)
        if not (answer.continuable and self._delivered.keep(self._body)):
            self._forget()
        moves = 0
        while True:
            assert self._attempt is not None
            assert self._attempt.stream is not None
            began = time.perf_counter()
            try:
                async for piece in self._attempt.stream.pieces(self._write_now):
                    if piece.last:
                        raise_if_lost(piece.lost)
                        self._learn(piece)
                    if piece.data:
                        yield piece.data
                    self._note(piece)
                    if self._delivered is not None and not piece.last and self._should_migrate():
                        began = time.perf_counter()
                        if await self._move(self._delivered, moves + 1):
                            break
                else:
                    return
            except ConnectionError as error:
                began = time.perf_counter()
                if self._complete:
                    return
                self._lose(error)
                if self._delivered is None or not await self._go_on(self._delivered, moves + 1):
                    yield replica_lost(self._model).last_frames()
                    return
            moves += 1
            yield b": continued on another replica after %.2f s\n\n" % (time.perf_counter() - began)

    def _write_now(self, piece: Piece) -> bool:
        """Write a piece to the client within the call that receives it, if nothing else is to be done.

        This is the fast path of a token. Returns whether it was taken.
        """
        write_now = self._request.state.write_now
        attempt = self._attempt
        if write_now is None or attempt is None or attempt.reservation.replica.unlisted_at is not None:
            return False
        if not write_now(piece.data):
            return False
        self._note(piece)
        return True

    def _note(self, piece: Piece) -> None:
        """Note a piece that the client was sent, on either path."""
        if piece.data.endswith(DONE):  # a replica that went on with the stream would say it once more
            self._complete = True
            self._forget()
        elif self._delivered is not None and not self._delivered.note(piece):
            self._forget()

    def _forget(self) -> None:
        """Keep nothing of the stream any more: no other replica is to go on with it."""
        self._delivered, self._body = None, b""
        if self._request.kept is not None:
            self._request.kept.release()

    def end(self) -> None:
        """Give back its reservation and its memory; the engine stops working on it."""
        self._leave()
        self._forget()

    def _leave(self) -> None:
        if self._attempt is not None:
            self._end(self._attempt)
            self._attempt = None

    async def _ask(self, attempt: _Attempt, continuation: Continuation | None) -> Answer:
        reservation, replicas = attempt.reservation, self._admission.replicas
        attempt.sent_at = time.perf_counter()
        attempt.continues = continuation is not None
        attempt.delivered_before = 0 if self._delivered is None else self._delivered.count
        try:
            channel = await self._channels.to(reservation.replica)
            expected = replicas.expected_tokens(reservation)
            attempt.stream = channel.call(self._request, self._body, continuation, expected)
            answer = await attempt.stream.answer()
            raise_if_lost(answer.lost)
            if answer.streamed:
                await attempt.stream.begun()
        except NeverBegunError:
            # Otherwise it would always have the least load, and be tried again and again.
            reservation.replica.failures += 1
            raise
        self._budget.answered = True
        attempt.spent_before = self._budget.spent
        if continuation is None and self._delivered is not None:
            # The client had been sent nothing of the answer that another model began.
            self._delivered.identity = reservation.replica.identity
        if answer.status < HTTPStatus.BAD_REQUEST:
            replicas.note_first_byte(reservation)
            if not answer.streamed:
                self._learn(answer)
        return answer

    def _learn(self, end: Answer | Piece) -> None:
        """Note the counts of prompt tokens that come with the end of an answer."""
        state = self._request.state
        state.cached_tokens, state.prompt_tokens = end.cached_tokens, end.prompt_tokens
        if self._attempt is not None and not self._attempt.continues:
            reservation = self._attempt.reservation
            self._admission.replicas.learn(reservation, end.cached_tokens, end.prompt_tokens)

    async def _go_on(self, delivered: Delivered, moves: int) -> bool:
        """Have another replica go on with the stream of one that is lost. Returns whether one does."""
        if self._budget.is_spent:
            return False
        try:
            answer = await self.begin(delivered.continuation(self._request.state.ttft_s or 0.0, moves))
        except ApiError as error:
            logger.warning("request %s: cannot be continued: %s", self._request.request_id, error.message)
            return False
        if not answer.streamed:
            logger.warning("request %s: cannot be continued: %s", self._request.request_id, answer.body)
        return answer.streamed

    def _should_migrate(self) -> bool:
        """Whether its replica has drained for long enough, and no other was looked for in the last second."""
        assert self._attempt is not None
        replica = self._attempt.reservation.replica
        if replica.unlisted_at is None or not self._admission.is_draining_too_long(replica):
            return False
        now = time.perf_counter()
        if now < self._looks_again_at:
            return False
        self._looks_again_at = now + _MOVE_RETRY_S
        return True

    async def _move(self, delivered: Delivered, moves: int) -> bool:
        """Have another replica go on with a stream whose replica drains. Returns whether one does now.

        Until then the present replica goes on, and its tokens are not read.
        """
        reservation = self._admission.take_for_move(self._request, delivered.count, delivered.identity)
        if reservation is None:
            return False
        attempt, moved = _Attempt(reservation), False
        try:
            ttft_s = self._request.state.ttft_s or 0.0
            answer = await self._ask(attempt, delivered.continuation(ttft_s, moves))
            moved = answer.streamed
            if answer.status == HTTPStatus.CONFLICT:
                self._looks_again_at = math.inf  # every engine refuses it
        except ConnectionError as error:
            logger.warning("request %s: not moved: %s", self._request.request_id, error)
            failed = self._budget.charge(error, reservation.replica, attempt.sent_at)
            if failed or self._budget.is_spent:
                self._looks_again_at = math.inf  # it can stay where it is, and others lose no engine
        finally:
            if not moved:
                self._end(attempt)
        if moved:
            if self._request.prefix is not None:
                replica_id = reservation.replica.replica_id
                self._admission.replicas.prefixes.add(replica_id, self._request.prefix)
            self._leave()
            self._attempt = attempt
        return moved

    def _end(self, attempt: _Attempt) -> None:
        if attempt.stream is not None:
            attempt.stream.close()
        self._admission.replicas.release(attempt.reservation)

    def _lose(self, error: ConnectionError) -> None:
        logger.warning("request %s: replica lost: %s", self._request.request_id, error)
        if (attempt := self._attempt) is not None:
            if self._delivered is not None:
                tokens = self._delivered.count - attempt.delivered_before
                self._budget.refund(attempt.spent_before, tokens)
            self._budget.charge(error, attempt.reservation.replica, attempt.sent_at)
        self._leave()
