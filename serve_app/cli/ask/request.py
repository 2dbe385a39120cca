"""Send one prompt and follow its answer, a stream of server-sent events, to the end."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp

from serve_app import env
from serve_app.api.engine_client import EVENT_STREAM
from serve_app.cli.ask.answer import Answer
from serve_app.cli.ask.display import Display, Wait
from serve_app.cli.command_error import CommandError
from serve_app.cli.formats import count
from serve_app.cli.http_client import error_words, proxy_for

_MOST_BYTES = 64 * 2**10
"""The most bytes that are read of an error."""
_NO_CHAT = "chat template"
"""vLLM's message has these words if a model has no chat template."""
_WAIT = re.compile(r"\bphase=(?P<phase>\S+) eta_s=(?P<eta>\S+) waited_s=(?P<waited>[0-9]{1,9})")


class _RefusedError(CommandError):
    pass


class Event(NamedTuple):
    """One event; `name` is empty if the stream gives none."""

    name: str
    data: str


class EventReader:
    """Turns blocks of bytes into events and waits."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[Event | Wait]:
        """The events and waits that are complete with these bytes. Other comments are skipped."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8", "replace")
            if not text:
                if self._data:
                    yield Event(self._name, "\n".join(self._data))
                self._name, self._data = "", []
            elif text.startswith(":"):
                if wait := _WAIT.search(text):
                    eta = wait["eta"]
                    eta_s = int(eta) if eta.isascii() and eta.isdigit() and len(eta) < 10 else None
                    yield Wait(wait["phase"], eta_s, int(wait["waited"]))
            else:
                key, _, value = text.partition(":")
                if key == "data":
                    self._data.append(value.removeprefix(" "))
                elif key == "event":
                    self._name = value.removeprefix(" ")


@dataclass(slots=True)
class Question:
    """A prompt, the server to send it to, and the bounds of the answer; `display` is told what comes."""

    url: str
    """Without the path `/v1/...`."""
    headers: Mapping[str, str]
    model: str | None
    """None for the first that the server lists."""
    prompt: str
    max_tokens: int
    timeout_s: float
    """The time limit for the whole answer."""
    display: Display
    _answer: Answer | None = field(default=None, init=False)
    _wait: Wait | None = field(default=None, init=False)

    async def ask(self) -> Answer:
        """Return the complete answer. Raises CommandError if none came, with what came instead."""
        ticking = asyncio.create_task(self._tick())
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._ask()
        except TimeoutError:
            raise CommandError(f"no complete answer within {self.timeout_s:g} s: {self._state()}") from None
        except aiohttp.ClientConnectorError as error:
            raise CommandError(f"no server answers at {self.url}: {error.os_error or error}") from None
        except (aiohttp.ClientError, OSError) as error:
            words = str(error) or type(error).__name__
            raise CommandError(f"the connection was lost: {words}; {self._state()}") from None
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.display.tick()

    async def _ask(self) -> Answer:
        """Ask for the models if none is given, then for a chat, or for a completion if there is no chat."""
        async with aiohttp.ClientSession(
            headers={"Accept-Encoding": "identity", "User-Agent": "tideserve-ask", **self.headers},
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
            proxy=proxy_for(self.url),
        ) as session:
            model = self.model or await self._first_model(session)
            self.display.asked(model)
            messages = [{"role": "user", "content": self.prompt}]
            try:
                return await self._stream(session, model, "/v1/chat/completions", {"messages": messages})
            except _RefusedError as refusal:
                if _NO_CHAT not in str(refusal):
                    raise
            return await self._stream(session, model, "/v1/completions", {"prompt": self.prompt})

    def _state(self) -> str:
        """How far the answer had come, as a clause."""
        answer, wait = self._answer, self._wait
        if answer is None:
            return "no answer had begun"
        if answer.pieces:
            return f"{count(answer.pieces, 'piece')} of the answer had come"
        if wait is not None:
            return f"the request was waiting for a replica in phase {wait.phase}"
        return "no token had come"

    @property
    def _root(self) -> str:
        return self.url.rstrip("/")

    async def _first_model(self, session: aiohttp.ClientSession) -> str:
        async with self._replied(session.get(f"{self._root}/v1/models", allow_redirects=False)) as reply:
            body = await reply.read()
        try:
            return str(json.loads(body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise CommandError(f"{self._root}/v1/models answers, but lists no model") from None

    async def _stream(
        self, session: aiohttp.ClientSession, model: str, path: str, body: Mapping[str, Any]
    ) -> Answer:
        document = {
            "model": model,
            **body,
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._wait = None
        self._answer = answer = Answer(model)
        sent = time.monotonic()
        call = session.post(f"{self._root}{path}", json=document, allow_redirects=False)
        async with self._replied(call) as reply:
            if reply.content_type != EVENT_STREAM:
                raise CommandError(f"{self._root}{path} answers with {reply.content_type}, not with a stream")
            reader = EventReader()
            async for data in reply.content.iter_any():
                for event in reader.feed(data):
                    if self._over(answer, event, time.monotonic() - sent):
                        return answer
        raise CommandError(f"the stream was cut off: it ended without [DONE]; {self._state()}")

    def _over(self, answer: Answer, event: Event | Wait, now_s: float) -> bool:
        """Take one event. Returns whether it ended a complete answer."""
        if isinstance(event, Wait):
            self._wait = event
            self.display.waiting(event)
            return False
        if event.data == "[DONE]":
            if not answer.tokens:
                raise CommandError("the stream ended with [DONE] and without a token")
            return True
        if event.name == "error" or event.data.startswith('{"error"'):
            words = error_words(event.data.encode("utf-8", "replace"))
            if not answer.pieces:
                raise _RefusedError(f"the stream ended in an error: {words}")
            raise CommandError(f"the stream ended in an error after {count(answer.pieces, 'piece')}: {words}")
        try:
            piece = answer.take(event.data, now_s)
        except (ValueError, RecursionError):
            raise CommandError(f"the stream has an event that is no completion: {event.data[:200]}") from None
        if piece is not None:
            self.display.piece(piece)
        return False

    @asynccontextmanager
    async def _replied(
        self, call: AbstractAsyncContextManager[aiohttp.ClientResponse]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a reply with status 200. Raises CommandError, with the server's message, for others."""
        async with call as reply:
            if reply.status == HTTPStatus.OK:
                yield reply
                return
            told = f"{reply.url} answers {reply.status}"
            if "Location" in reply.headers:
                raise CommandError(
                    f"{told}: redirected to {reply.headers['Location']}; give --url accordingly"
                )
            data = b""
            while len(data) < _MOST_BYTES and (block := await reply.content.readany()):
                data += block
            told += f": {error_words(data) or reply.reason or 'without a body'}"
            if reply.status == HTTPStatus.UNAUTHORIZED:
                told += f" (the key is taken from {env.API_KEY})"
            if "Retry-After" in reply.headers:
                told += f" (Retry-After: {reply.headers['Retry-After']})"
            raise _RefusedError(told)
