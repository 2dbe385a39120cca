"""Send one prompt and follow its answer to the end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from serve_app import env
from serve_app.api.engine_client import EVENT_STREAM
from serve_app.cli.ask.answer import Answer
from serve_app.cli.ask.display import Display
from serve_app.cli.ask.events import Event, EventReader, Wait
from serve_app.cli.environment_proxy import proxy_for
from serve_app.cli.error_words import error_words
from serve_app.cli.formats import count

_MOST_BYTES = 64 * 2**10
"""The most bytes that are read of an error."""
_NO_CHAT = "chat template"
"""vLLM's message has these words if a model has no chat template."""


class AskError(Exception):
    """No complete answer came. The message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, the server to send it to, and the bounds of the answer."""

    url: str
    """Without the path `/v1/...`."""
    headers: Mapping[str, str]
    model: str | None
    """None for the first that the server lists."""
    prompt: str
    max_tokens: int
    timeout_s: float
    """The time limit for the whole answer."""


class _RefusedError(AskError):
    pass


async def ask(question: Question, display: Display) -> Answer:
    """Return the complete answer.

    Raises:
        AskError: if none came, with what came instead.
    """
    attempt = _Attempt(question, display)
    try:
        async with asyncio.timeout(question.timeout_s):
            return await attempt.run()
    except TimeoutError:
        raise AskError(f"no complete answer within {question.timeout_s:g} s: {attempt.state()}") from None
    except aiohttp.ClientConnectorError as error:
        raise AskError(f"no server answers at {question.url}: {error.os_error or error}") from None
    except (aiohttp.ClientError, OSError) as error:
        words = str(error) or type(error).__name__
        raise AskError(f"the connection was lost: {words}; {attempt.state()}") from None


class _Attempt:
    def __init__(self, question: Question, display: Display) -> None:
        self._question = question
        self._display = display
        self._url = question.url.rstrip("/")
        self._answer: Answer | None = None
        self._wait: Wait | None = None

    async def run(self) -> Answer:
        """Ask for the models if none is given, then for a chat, or for a completion if there is no chat."""
        question = self._question
        async with aiohttp.ClientSession(
            headers={"Accept-Encoding": "identity", "User-Agent": "tideserve-ask", **question.headers},
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
            proxy=proxy_for(question.url),
        ) as session:
            model = question.model or await self._first_model(session)
            self._display.asked(model)
            messages = [{"role": "user", "content": question.prompt}]
            try:
                return await self._stream(session, model, "/v1/chat/completions", {"messages": messages})
            except _RefusedError as refusal:
                if _NO_CHAT not in str(refusal):
                    raise
            return await self._stream(session, model, "/v1/completions", {"prompt": question.prompt})

    def state(self) -> str:
        """How far the answer had come, as a clause."""
        answer, wait = self._answer, self._wait
        if answer is None:
            return "no answer had begun"
        if answer.pieces:
            return f"{count(answer.pieces, 'piece')} of the answer had come"
        if wait is not None:
            return f"the request was waiting for a replica in phase {wait.phase}"
        return "no token had come"

    async def _first_model(self, session: aiohttp.ClientSession) -> str:
        async with self._replied(session.get(f"{self._url}/v1/models", allow_redirects=False)) as reply:
            body = await reply.read()
        try:
            return str(json.loads(body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise AskError(f"{self._url}/v1/models answers, but lists no model") from None

    async def _stream(
        self, session: aiohttp.ClientSession, model: str, path: str, body: Mapping[str, Any]
    ) -> Answer:
        document = {
            "model": model,
            **body,
            "max_tokens": self._question.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._wait = None
        self._answer = answer = Answer(model)
        sent = time.monotonic()
        call = session.post(f"{self._url}{path}", json=document, allow_redirects=False)
        async with self._replied(call) as reply:
            if reply.content_type != EVENT_STREAM:
                raise AskError(f"{self._url}{path} answers with {reply.content_type}, not with a stream")
            reader = EventReader()
            async for data in reply.content.iter_any():
                for event in reader.feed(data):
                    if self._over(answer, event, time.monotonic() - sent):
                        return answer
        raise AskError(f"the stream was cut off: it ended without [DONE]; {self.state()}")

    def _over(self, answer: Answer, event: Event | Wait, now_s: float) -> bool:
        """Take one event. Returns whether it ended a complete answer."""
        if isinstance(event, Wait):
            self._wait = event
            self._display.waiting(event)
            return False
        if event.data == "[DONE]":
            if not answer.tokens:
                raise AskError("the stream ended with [DONE] and without a token")
            return True
        if event.name == "error" or event.data.startswith('{"error"'):
            words = error_words(event.data.encode("utf-8", "replace"))
            if not answer.pieces:
                raise _RefusedError(f"the stream ended in an error: {words}")
            raise AskError(f"the stream ended in an error after {count(answer.pieces, 'piece')}: {words}")
        try:
            piece = answer.take(event.data, now_s)
        except (ValueError, RecursionError):
            raise AskError(f"the stream has an event that is no completion: {event.data[:200]}") from None
        if piece is not None:
            self._display.piece(piece)
        return False

    @asynccontextmanager
    async def _replied(
        self, call: AbstractAsyncContextManager[aiohttp.ClientResponse]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a reply with status 200. Raises AskError, with the server's message, for any other status."""
        async with call as reply:
            if reply.status == HTTPStatus.OK:
                yield reply
                return
            told = f"{reply.url} answers {reply.status}"
            if "Location" in reply.headers:
                raise AskError(f"{told}: redirected to {reply.headers['Location']}; give --url accordingly")
            data = b""
            while len(data) < _MOST_BYTES and (block := await reply.content.readany()):
                data += block
            told += f": {error_words(data) or reply.reason or 'without a body'}"
            if reply.status == HTTPStatus.UNAUTHORIZED:
                told += f" (the key is taken from {env.API_KEY})"
            if "Retry-After" in reply.headers:
                told += f" (Retry-After: {reply.headers['Retry-After']})"
            raise _RefusedError(told)
