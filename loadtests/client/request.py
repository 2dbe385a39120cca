"""One request, from its intended time to its record."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import aiohttp

from loadtests.client.connection import Stream, failure_words, refusal_words
from loadtests.client.pacer import Clock
from loadtests.client.prompts import Target
from loadtests.client.sse import Scanner
from loadtests.plan import Planned
from loadtests.record import Outcome, Record
from loadtests.scenario import Client

TEMPLATE_TOKENS = 16
"""A chat template may add as many for two more messages: Llama 3 and ChatML take 4 or 5 tokens for each."""


def with_next_turn(record: Record, planned: Planned, context_tokens: int | None, until_s: float) -> Record:
    """`record`, the end of the turn `planned`, with the time of the next turn or the reason why none comes.

    A request without a conversation stays as it is. No turn begins at `until_s` of the run or later, and none
    may exceed the model's context, where it is known.
    """
    following = planned.following
    if planned.session is None:
        return record
    if record.outcome != "answered":
        return replace(record, conversation_end="unanswered")
    if following is None:
        return replace(record, conversation_end="whole")
    if context_tokens is not None and expected_tokens(record, planned, following) > context_tokens:
        return replace(record, conversation_end="context")
    at_s = record.ended_s + following.think_s
    if at_s >= until_s:
        return replace(record, conversation_end="time")
    return replace(record, next_at_s=at_s)


def expected_tokens(record: Record, planned: Planned, following: Planned) -> int:
    """Expected tokens of the prompt and answer of the turn after `record`.

    The prompt and the answer before it are as the server counted them. The new message is scaled as that
    prompt was, since a word is not one token in every vocabulary.
    """
    prompt = planned.prompt_tokens if record.prompt_tokens is None else record.prompt_tokens
    answer = planned.output_tokens if record.output_tokens is None else record.output_tokens
    longer = max(1.0, prompt / planned.prompt_tokens)
    message = math.ceil(following.own_tokens * longer)
    return prompt + answer + message + TEMPLATE_TOKENS + following.output_tokens


REFUSED = frozenset((429, 503))
LONGEST_WAIT_S = 300.0
"""Cap on `Retry-After`: a cold start of a large model takes minutes; beyond, a client asks in between."""
_FIRST_S = 0.5
_MOST_S = 8.0


def wait_s(retry_after: str | None, attempt: int, source: str, unix_s: float) -> float:
    """Seconds until attempt `attempt` + 1, with attempts counted from 1.

    The server's `Retry-After`, seconds or a date, counts up to `LONGEST_WAIT_S`. Without it the wait is 0.5
    s, doubled each time up to 8 s, less up to a quarter drawn from `source`, so that requests refused
    together do not come back together. The `openai` client does the same.
    """
    asked_s = _retry_after_s(retry_after, unix_s)
    if asked_s is not None:
        return min(max(asked_s, 0.0), LONGEST_WAIT_S)
    drawn = hashlib.blake2b(f"{source}/{attempt}".encode(), digest_size=4).digest()
    less = int.from_bytes(drawn, "big") / 2**32 / 4
    return min(_FIRST_S * 2.0 ** min(attempt - 1, 10), _MOST_S) * (1 - less)


def _retry_after_s(retry_after: str | None, unix_s: float) -> float | None:
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        pass
    else:
        return seconds if math.isfinite(seconds) else None
    try:
        return parsedate_to_datetime(retry_after).timestamp() - unix_s
    except (ValueError, OverflowError):  # No date, or one that no calendar reaches.
        return None


PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_ONE_PIECE_BYTES = 256 * 2**10
"""aiohttp hands bytes to the socket in one piece; larger bodies go in blocks."""
_OURS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))
"""Errors of this machine, not of the server: it ran out of files, memory or ports."""
_SETTLE_S = 1.0
"""How long the end of a chunked body may come after `[DONE]` before its connection is given up."""


class SpoiledError(Exception):
    """Requests failed because this machine lacked a resource, which says nothing of the server."""


@dataclass(slots=True)
class ClientState:
    """State that the requests of one client share."""

    session: aiohttp.ClientSession
    target: Target
    settings: Client
    begin: float
    """`time.monotonic` of the run's start."""
    emit: Callable[[Record], None]
    clock: Clock
    spoiled: str = ""
    """A resource this machine lacked for a request to be sent, in words."""
    until_s: float = math.inf
    """No later turn of a conversation begins then or after, seconds of the run."""
    open: set[RunningRequest] = field(default_factory=set)
    starting: set[asyncio.Task[None]] = field(default_factory=set)
    """Tasks that wait to send requests; cancelled when the run is stopped."""
    stopped: bool = False
    """No more requests are to be sent."""


class RunningRequest:
    """Sends one request, again where it is refused, and emits its record with any outcome."""

    def __init__(self, state: ClientState, planned: Planned, at_s: float) -> None:
        self._state, self._planned, self._at_s = state, planned, at_s
        self._scanner = self._new_scanner()
        self._response: aiohttp.ClientResponse | None = None
        self._status = 0
        self._attempts = 0
        self._ended = 0.0
        self._sent = 0.0
        self._task: asyncio.Task[object] | None = None
        self._verdict: tuple[Outcome, str] | None = None
        state.open.add(self)

    def end(self, outcome: Outcome, error: str = "") -> None:
        """Close the connection now, with this outcome; nothing if the request is over."""
        if self._verdict is None:
            self._verdict = outcome, error
            if self._task is not None:
                self._task.cancel()

    @property
    def kept(self) -> list[bytes]:
        """The frames of the answer, where a later turn repeats it."""
        return self._scanner.kept or []

    async def run(self, take: Callable[[Planned], Awaitable[bytes]]) -> Record:
        """Send the body that `take` gives, and return the record. Every outcome is recorded, none raised."""
        self._sent = time.monotonic()
        state = self._state
        self._task = asyncio.current_task()
        timers = self._timers()
        try:
            if self._verdict is None:
                body = await take(self._planned)
                self._sent = time.monotonic()  # A body made late is the client's lag, not the server's.
                self._verdict = await self._answer(body)
            self._ended = self._ended or time.monotonic()
        except asyncio.CancelledError:
            if self._verdict is None:  # Not by `end`: the whole client is being cancelled.
                self._close()
                raise
            if self._task is not None:
                self._task.uncancel()
            self._ended = time.monotonic()
            if not self._attempts:  # It never left.
                self._sent = self._ended
            if self._scanner.done:
                self._verdict = "answered", ""
        finally:
            self._task = None
            for timer in timers:
                timer.cancel()
            state.open.discard(self)
        outcome, error = self._verdict
        if outcome != "answered":
            self._close()
        state.clock.sent_late_s.append(self._sent - state.begin - self._at_s)
        record = self._record(outcome, error)
        state.emit(record)
        await self._settle()
        return record

    def _new_scanner(self) -> Scanner:
        return Scanner(self._planned.api, keep=self._planned.following is not None)

    def _timers(self) -> list[asyncio.TimerHandle]:
        loop = asyncio.get_running_loop()
        passed = time.monotonic() - self._state.begin - self._at_s
        timeout_s = self._state.settings.timeout_s
        timers = [loop.call_later(max(0.0, timeout_s - passed), self._abandon, timeout_s)]
        if self._planned.leave_after_s is not None:
            timers.append(loop.call_later(max(0.0, self._planned.leave_after_s - passed), self.end, "left"))
        return timers

    def _abandon(self, timeout_s: float) -> None:
        pieces = len(self._scanner.pieces)
        if pieces:
            state = f"{pieces} pieces had come"
        elif self._status in REFUSED:
            state = f"the last attempt was refused with {self._status}"
        elif self._status:
            state = "the answer had begun, without a piece"
        else:
            state = "no answer had begun"
        self.end("abandoned", f"not whole {timeout_s:g} s after its intended time: {state}")

    async def _answer(self, body: bytes) -> tuple[Outcome, str]:
        state, planned = self._state, self._planned
        url = state.target.url.rstrip("/") + PATHS[planned.api]
        while True:
            self._attempts += 1
            self._scanner = self._new_scanner()
            try:
                self._response = response = await state.session.post(
                    url,
                    data=body if len(body) < _ONE_PIECE_BYTES else io.BytesIO(body),
                    allow_redirects=False,
                )
                self._status = response.status
                if response.status == HTTPStatus.OK:
                    return await self._read(response)
                error = await refusal_words(response)
            except (aiohttp.ClientError, OSError) as failure:
                if isinstance(failure, OSError) and failure.errno in _OURS:
                    state.spoiled = failure_words(failure)
                return "failed", failure_words(failure)
            if response.status not in REFUSED:
                return "failed", error
            if self._attempts > state.settings.retries:
                return "rejected", error
            source = f"{state.target.seed}/{planned.index}"
            retry_after = response.headers.get("Retry-After")
            await asyncio.sleep(wait_s(retry_after, self._attempts, source, time.time()))

    async def _read(self, response: aiohttp.ClientResponse) -> tuple[Outcome, str]:
        scanner, enough = self._scanner, self._planned.leave_after_tokens
        stream = Stream(response, scanner, enough)
        try:
            self._ended = await stream.over()
        finally:
            stream.leave()
        if scanner.done:
            return "answered", ""
        broken: Outcome = "broken" if scanner.pieces else "failed"
        if scanner.error:
            return broken, scanner.error
        if enough is not None and len(scanner.pieces) >= enough:
            return "left", ""
        if stream.cut is not None:
            return broken, f"the connection was lost within the answer: {failure_words(stream.cut)}"
        if stream.content_type != "text/event-stream":
            return broken, f"the answer is no event stream but {stream.content_type}"
        return broken, "the stream ended without [DONE]"

    def _close(self) -> None:
        if self._response is not None:
            self._response.close()

    async def _settle(self) -> None:
        """Wait for the very end of the body, so that the connection can be used again."""
        response = self._response
        if response is None or response.closed:
            return
        try:
            async with asyncio.timeout(_SETTLE_S):
                await response.content.wait_eof()
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass  # The answer is whole and recorded; its connection is merely not reused.
        finally:
            response.close()

    def _record(self, outcome: Outcome, error: str) -> Record:
        begin, planned, scanner = self._state.begin, self._planned, self._scanner
        usage, target = scanner.usage(), self._state.target
        model = planned.model or target.model
        record = Record(
            index=planned.index,
            kind=planned.kind,
            model=model,
            at_s=self._at_s,
            sent_s=self._sent - begin,
            ended_s=self._ended - begin,
            outcome=outcome,
            status=self._status,
            attempts=max(1, self._attempts),
            # Half a surrogate pair, as a server may send, has no bytes in UTF-8.
            error=error.encode(errors="replace").decode(),
            pieces_s=tuple([at - begin for at in scanner.pieces]),
            planned_prompt_tokens=planned.prompt_tokens,
            planned_output_tokens=planned.output_tokens,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            cold_wait_s=scanner.waited_s if usage.cold_wait_s is None else usage.cold_wait_s,
            phases=tuple((at - begin, phase) for at, phase in scanner.phases),
            planned_prefix_tokens=planned.prefix_tokens,
            prefix=planned.prefix,
            session=planned.session,
            turn=planned.turn,
        )
        return with_next_turn(record, planned, target.context_tokens.get(model), self._state.until_s)
