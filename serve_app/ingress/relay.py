"""The relay: it sends a request to a replica, and to another if that is lost, and returns the answer."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from http import HTTPStatus

from serve_app.api.dialect import dialect_of
from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.ingress.admission import Admission, unavailable
from serve_app.ingress.attempt import (
    Attempt,
    Delivered,
    EngineDiedError,
    EngineFailedError,
    RetryBudget,
    attempt_at,
    longest_answer,
    note_continuation,
    note_pick,
    raise_if_lost,
)
from serve_app.ingress.cold_start_progress import ColdStartProgress
from serve_app.ingress.engine_channel import EngineChannels, NeverBegunError
from serve_app.ingress.replica import Replica
from serve_app.settings.tree import ModelSettings
from serve_app.wire.data_plane import Answer, Continuation, Piece, TokenCounts
from serve_app.wire.spans import ANSWER, BACKOFF, FIRST_TOKEN, STATUS_CODE

logger = logging.getLogger("ray.serve")

# Ray lists a replica whose engine core died for about 4 s more: three health checks, one a second. The waits
# between seven attempts (0.2 s, 0.4 s, …) take 4.2 s.
_ATTEMPTS = 7
_IN_BACKGROUND = ColdStartProgress("background", None)
_BEFORE_FIRST_TOKEN = ColdStartProgress("first_token", None)
"""The engine may load an adapter, or compute a long prompt."""
_COME_LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class RelayClient:
    """The ingress's `EngineClient`: it reaches engine replicas over the ports that they open.

    Args:
        admission: Finds replicas, and queues requests while there is none.
        channels: The connections to engine replicas, which heartbeats share.
        backoff_s: The wait after the first lost replica. Later waits are multiples of it.
        move_retry_s: How often a stream on a draining replica looks for another one.
        is_alone: Returns whether no other client answers a request that this one could not begin.
    """

    def __init__(
        self,
        model: ModelSettings,
        admission: Admission,
        channels: EngineChannels,
        backoff_s: float = 0.2,
        move_retry_s: float = 1.0,
        is_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        self.is_alone = is_alone
        self.ends = False
        """Whether streams end that lose their replica."""
        self.model = model.name
        self.admission = admission
        self.channels = channels
        self.backoff_s = backoff_s
        self.move_retry_s = move_retry_s
        self._hang_timeout_s = model.engine_hang_timeout_s
        admission.replicas.on_trouble.append(self._give_up)

    @asynccontextmanager
    async def call(self, request: EngineRequest) -> AsyncIterator[EngineReply]:
        """Run `request` on a replica, and on another if that is lost. Most streams can continue elsewhere.

        Raises:
            ApiError: no replica could take it, or replicas were lost one after another.
        """
        relayed = _RelayedRequest(self, request)
        try:
            answer = await relayed.begin()
            if request.watch is not None and not answer.streamed:
                request.watch.note(answer.body)
            headers = {name: value for name, value in answer.headers.items() if name == "Retry-After"}
            stream = relayed.events(answer) if answer.streamed else None
            yield EngineReply(answer.status, b"" if answer.streamed else answer.body, stream, headers)
        finally:
            relayed.end()

    def end_streams(self) -> None:
        """End all streams with an error. Other requests of this client lose their replica."""
        self.ends = True
        for replica in self.admission.replicas.listed():
            self.channels.close(replica, "the version has been taken back")

    def _give_up(self, replica: Replica) -> None:
        """Send the requests of a replica that hangs or is dead to another replica of the same model.

        If there is no other, they stay until the replica recovers or Ray replaces it. Ray does not check a
        draining replica. So requests leave a draining replica once it has hung for `engine_hang_timeout_s`.
        """
        hung = replica.unlisted_at is not None and replica.still_s >= self._hang_timeout_s
        if hung or self.admission.replicas.has_substitute(replica):
            # An engine that does not stand still has died. Its own word may wait for a slow client.
            loss = ConnectionError if replica.still_s else EngineFailedError
            self.channels.close(replica, replica.trouble, loss)


class _RelayedRequest:
    """A request, and the replica that runs it."""

    def __init__(self, client: RelayClient, request: EngineRequest) -> None:
        self._client = client
        self._admission = client.admission
        self._replicas = client.admission.replicas
        self._request = request
        self._dialect = dialect_of(request.operation)
        self._sent = b""
        """The last frames that were sent to the client."""
        self._body = request.body
        """Kept until the end of a stream, if it is small enough to be sent again."""
        self._attempt: Attempt | None = None
        self._open = ExitStack()
        """Ends the present attempt."""
        self._delivered: Delivered | None = None
        """The delivered tokens of a stream that another replica can continue; else None."""
        self._least_tokens = 0
        """The delivered tokens that `_delivered` does not count. An event has at least one token."""
        self._budget = RetryBudget()
        self._complete = False
        """Whether the client has got the stream's last event."""
        self._retry = False
        self._next_move_at = 0.0
        self._longest: int | None = None
        """The bound on the tokens of the answer, 0 without one; None until it is needed."""

    async def begin(self, continuation: Continuation | None = None) -> Answer:
        """Return the first message of an answer, from the first replica that sends one.

        If the request has lost a replica, a 429 or 503 of another replica leads to one more attempt.

        Raises:
            ApiError: no replica could take it, replicas were lost one after another, or no replica serves the
                model that began the stream.
        """
        lost: Exception | None = None
        refused: set[Replica] = set()
        model_identity = None if continuation is None else continuation.model_identity
        attempts = _ATTEMPTS if continuation is not None or self._client.is_alone() else 1
        for number in range(1, attempts + 1):
            retry, self._retry = self._retry, True
            asked_at = time.perf_counter()
            reservation = await self._admission.take(
                self._request, retry=retry, model_identity=model_identity, refused=refused
            )
            self._attempt = attempt = self._open.enter_context(attempt_at(self._replicas, reservation))
            expected = self._replicas.expected_tokens(reservation)
            note_pick(self._request.trace, asked_at, reservation, expected, retry=retry)
            try:
                answer = await self._ask(attempt, continuation)
            except ConnectionError as error:
                self._record_loss(error)
                lost = error
            else:
                if not retry or answer.status not in _COME_LATER or number == attempts:
                    return answer
                refused.add(reservation.replica)
                attempt.outcome = "refused"
                self._open.close()
            if self._budget.is_spent or number == attempts:
                break
            # The request has no reservation while it waits for Ray to notice the loss.
            pause = self._request.trace.begin(BACKOFF)
            await asyncio.sleep(self._client.backoff_s * number)
            self._request.lose(self._client.backoff_s * number)
            pause.end()
        why = "replicas were lost one after another."
        raise unavailable(self._client.model, why, code="replicas_lost") from lost

    async def events(self, answer: Answer) -> AsyncIterator[bytes]:
        """Yield the frames of the stream that began with `answer`, from all replicas that run it."""
        assert self._attempt is not None
        self._delivered = Delivered(self._attempt.reservation.replica.model_identity, self._request.kept)
        if not (answer.continuable and self._delivered.keep(self._body)):
            self._release_kept()
        moves = 0
        while True:
            assert self._attempt is not None
            assert self._attempt.stream is not None
            began = time.perf_counter()
            try:
                async for piece in self._attempt.stream.pieces(self._write_now):
                    if piece.last:
                        raise_if_lost(piece.lost)
                        self._learn(self._attempt, piece.counts)
                    if piece.data:
                        yield piece.data
                    self._record(piece)
                    if self._delivered is not None and not piece.last and self._should_move():
                        began = time.perf_counter()
                        if await self._move(self._delivered, moves + 1):
                            break
                else:
                    return
            except ConnectionError as error:
                began = time.perf_counter()
                if self._complete:
                    return
                self._record_loss(error)
                if self._delivered is None or not await self._continue_elsewhere(self._delivered, moves + 1):
                    why = "the engine replica was lost while it was generating."
                    lost = ApiError(502, f"Model {self._client.model!r}: {why}", code="replica_lost")
                    yield self._dialect.last_frames(lost, self._request, self._sent)
                    return
            moves += 1
            delivered = 0 if self._delivered is None else self._delivered.count
            note_continuation(self._request.trace, began, moves, delivered)
            took_s = time.perf_counter() - began
            shown = self._request.trace.comment()
            yield b": continued on another replica after %.2f s\n\n%b" % (took_s, shown)

    def _write_now(self, piece: Piece) -> bool:
        """Write a piece to the client within the call that receives it. Returns whether it was written.

        This is the fast path of a token. Streams of a draining replica take the slow path, to move from it.
        """
        write_now = self._request.write_now
        attempt = self._attempt
        if write_now is None or attempt is None or attempt.reservation.replica.draining:
            return False
        if not write_now(piece.data):
            return False
        self._record(piece)
        return True

    def _record(self, piece: Piece) -> None:
        """Record a piece that was sent to the client, on either path."""
        self._sent = piece.data or self._sent
        self._request.silent_since = None
        if self._request.watch is not None:
            self._request.watch.note(piece.data)
        if self._dialect.ends(piece.data):  # a replica that continued the stream would send it twice
            self._complete = True
            if self._attempt is not None:
                self._attempt.outcome = "answered"
            self._release_kept()
        elif self._delivered is None:
            self._least_tokens += piece.data.count(b"\n\n")
        elif not self._delivered.note(piece):
            self._release_kept()

    def _release_kept(self) -> None:
        """Release the memory of the stream: no other replica will continue it."""
        if self._delivered is not None:
            self._least_tokens += self._delivered.count
        self._delivered, self._body = None, b""
        if self._request.kept is not None:
            self._request.kept.release()

    def end(self) -> None:
        """End the attempt, and give back the memory. The engine stops working on the request."""
        request, attempt = self._request, self._attempt
        if attempt is not None and attempt.stream is not None:
            request.left_engine = attempt.outcome == "abandoned"
        self._open.close()
        self._release_kept()
        if request.counts.output is None and self._least_tokens:
            request.counts.output = self._least_tokens  # the engine has sent no true number
        self._admission.settle(self._request)

    async def _ask(self, attempt: Attempt, continuation: Continuation | None) -> Answer:
        reservation, replicas = attempt.reservation, self._replicas
        attempt.begin(self._request.trace)
        attempt.continues = continuation is not None
        attempt.delivered_before = 0 if self._delivered is None else self._delivered.count
        channel = await self._client.channels.to(reservation.replica)
        expected = replicas.expected_tokens(reservation)
        lane_knob = self._admission.lane_knob(self._request)
        attempt.stream = channel.call(self._request, self._body, continuation, expected, lane_knob)
        if self._request.wants_stream:
            attempt.stream.keep_alive = self._keep_alive
        async with self._admission.within_deadline(None if continuation else self._request):
            answer = await attempt.stream.answer()
            raise_if_lost(answer.lost)
            if answer.streamed:
                await attempt.stream.wait_for_event()
        if not self._request.is_background:  # its engine does not pause it
            attempt.stream.keep_alive = None
        attempt.stage.note_event(FIRST_TOKEN if answer.streamed else ANSWER, {STATUS_CODE: answer.status})
        if not answer.streamed:
            attempt.outcome = "refused" if answer.status in _COME_LATER else "answered"
        self._budget.answered = True
        attempt.spent_before = self._budget.spent
        if continuation is None and self._delivered is not None:
            # The client has got nothing of the answer that another model began.
            self._delivered.model_identity = reservation.replica.model_identity
        if answer.status < HTTPStatus.BAD_REQUEST:
            replicas.note_first_byte(reservation)
            if not attempt.continues:
                self._learn(attempt, answer.prompts if answer.streamed else answer.counts)
        elif answer.counts is not None and answer.counts.input:
            self._request.counts = answer.counts  # it failed after its tokens were computed
        return answer

    def _keep_alive(self, arrives: asyncio.Future[bool]) -> Awaitable[None]:
        progress = _IN_BACKGROUND if self._request.is_background else _BEFORE_FIRST_TOKEN
        return self._admission.keep_alive.wait(self._request, arrives, lambda: progress)

    def _learn(self, attempt: Attempt, counts: TokenCounts | None) -> None:
        """Record the tokens that an engine tells with the first output of a stream, or with the end."""
        if counts is None:
            return
        self._request.counts = counts
        if not (attempt.continues or attempt.counted):
            attempt.counted = True
            self._replicas.learn(attempt.reservation, counts.cached, counts.prompt)

    async def _continue_elsewhere(self, delivered: Delivered, moves: int) -> bool:
        """Let another replica continue the stream of a lost replica. Returns whether one does."""
        if self._budget.is_spent or self._client.ends:
            return False
        try:
            answer = await self.begin(delivered.continuation(self._request.ttft_s or 0.0, moves))
        except ApiError as error:
            logger.warning("request %s: cannot be continued: %s", self._request.request_id, error.message)
            return False
        if not answer.streamed:
            logger.warning("request %s: cannot be continued: %s", self._request.request_id, answer.body)
        return answer.streamed

    def _should_move(self) -> bool:
        """Whether the replica has drained for long enough, and the next search for another is due."""
        assert self._attempt is not None
        replica = self._attempt.reservation.replica
        if not (replica.draining and self._admission.should_move_streams(replica, self._remaining)):
            return False
        now = time.perf_counter()
        if now < self._next_move_at:
            return False
        self._next_move_at = now + self._client.move_retry_s
        return True

    def _remaining(self) -> float:
        """Return the part of the longest answer that is still to come, 0 to 1; 1 if the length is unknown."""
        if self._longest is None:
            self._longest = longest_answer(self._body)
        delivered = 0 if self._delivered is None else self._delivered.count
        return min(max(1.0 - delivered / self._longest, 0.0), 1.0) if self._longest else 1.0

    async def _move(self, delivered: Delivered, moves: int) -> bool:
        """Let another replica continue the stream of a draining replica. Returns whether one does.

        Meanwhile the present replica goes on generating, and its tokens are not read.
        """
        asked_at = time.perf_counter()
        reservation = self._admission.take_for_move(self._request, delivered.count, delivered.model_identity)
        if reservation is None:
            return False
        note_pick(self._request.trace, asked_at, reservation, None, retry=True)
        with ExitStack() as opened:
            attempt = opened.enter_context(attempt_at(self._replicas, reservation))
            try:
                answer = await self._ask(attempt, delivered.continuation(self._request.ttft_s or 0.0, moves))
            except ConnectionError as error:
                logger.warning("request %s: not moved: %s", self._request.request_id, error)
                attempt.outcome = "lost"
                failed = self._charge(error, attempt)
                if failed or self._budget.is_spent:
                    self._next_move_at = math.inf  # it may have ended the engine: it stays where it is
                return False
            if answer.status == HTTPStatus.CONFLICT:
                self._next_move_at = math.inf  # every engine would refuse it
            if not answer.streamed:
                return False
            if self._request.prefix is not None:
                self._replicas.prefixes.add(reservation.replica.replica_id, self._request.prefix)
            if self._attempt is not None:
                self._attempt.outcome = "moved"
            self._open.close()
            self._attempt, self._open = attempt, opened.pop_all()
        return True

    def _record_loss(self, error: ConnectionError) -> None:
        logger.warning("request %s: replica lost: %s", self._request.request_id, error)
        if self._request.watch is not None:
            self._request.watch.fail()
        if (attempt := self._attempt) is not None:
            self._request.lose(time.perf_counter() - attempt.sent_at)
            if self._delivered is not None:
                tokens = self._delivered.count - attempt.delivered_before
                self._budget.refund(attempt.spent_before, tokens)
            self._charge(error, attempt)
            attempt.outcome, attempt.error = "lost", str(error)
        self._open.close()

    def _charge(self, error: ConnectionError, attempt: Attempt) -> bool:
        """Charge the retry budget for the loss of a replica. Returns whether its engine failed by itself.

        A dead replica gets a failure. Otherwise it would have the least load and be picked again.
        """
        replica, there_s = attempt.reservation.replica, time.perf_counter() - attempt.sent_at
        if isinstance(error, (NeverBegunError, EngineDiedError)):
            replica.failures += 1
        return self._budget.charge(error, replica.still_s, there_s)
