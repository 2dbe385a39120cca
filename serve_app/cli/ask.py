"""`tideserve ask`: one streamed chat, to see that a deployment answers, and how fast."""

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from io import StringIO
from typing import TYPE_CHECKING, Any, TextIO, cast

from serve_app import env
from serve_app.api.dialect import EVENT_STREAM
from serve_app.api.request_trace import SHOW_HEADER
from serve_app.cli import CommandError, RefusedError
from serve_app.cli.ask_answer import Answer, Event, ShownTrace, read_events
from serve_app.cli.ask_display import Display, Wait
from serve_app.cli.formats import count, plain
from serve_app.cli.http_client import DEFAULT_URL, authorization, error_words, proxy_for, url_problem
from serve_app.cli.terminal_output import LastingStream
from serve_app.settings.settings_error import SettingsError

if TYPE_CHECKING:
    import aiohttp

PROMPT = "Tell me about the sea."
_MAX_TOKENS = 128
_TIMEOUT_S = 600.0
"""The default of `cold_wait_timeout_s`, the bound of the queue for a cold start."""
_LONGEST = 1000
"""Characters of a server's error that are printed at most."""
_INTERRUPTED = 130
"""A shell's exit status for a process that Ctrl-C ended."""
_MOST_BYTES = 64 * 2**10
"""Bytes of an error response that are read at most."""
_NO_CHAT = "chat template"
"""vLLM's message has these words if a model has no chat template."""
_SHOW_TRACE = {SHOW_HEADER.decode(): "1"}


def add_command(commands: Any) -> None:
    """Register `ask`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "ask",
        help="send one prompt and print the answer as it comes",
        description="Stream one chat completion. Standard output gets the answer. Standard error gets the "
        "progress and the latency figures.",
        epilog="Exit status: 0 after a complete answer, 1 without one, 130 after Ctrl-C. "
        f"The command sends the value of {env.API_KEY} as the API key.",
    )
    add = parser.add_argument
    add("prompt", nargs="?", default=PROMPT, metavar="PROMPT", help=f"text to send; by default {PROMPT!r}")
    add("--url", default=DEFAULT_URL, help=f"URL of the server; by default {DEFAULT_URL}")
    add("--model", metavar="NAME", help="model; by default the first one that the server lists")
    tokens_help = f"maximum length of the answer in tokens; by default {_MAX_TOKENS}"
    add("--max-tokens", type=int, default=_MAX_TOKENS, metavar="N", help=tokens_help)
    timeout_help = f"time limit for the whole answer, including a cold start; by default {_TIMEOUT_S:g}"
    add("--timeout", type=float, default=_TIMEOUT_S, metavar="SECONDS", help=timeout_help)
    add("--trace", action="store_true", help="show where the time went, as a waterfall")
    add("--json", action="store_true", help="print one JSON document at the end instead of the text")
    parser.set_defaults(command=run_ask)


def run_ask(options: argparse.Namespace) -> int:
    """Send the prompt and print the answer."""
    _check(options)
    # A stream that the shell has closed is None.
    printed, beside = (LastingStream(stream or StringIO()) for stream in (sys.stdout, sys.stderr))
    out = cast(TextIO, printed)
    display = Display(None if options.json else out, cast(TextIO, beside))
    bounds = options.max_tokens, options.timeout
    headers = {**authorization(), **(_SHOW_TRACE if options.trace else {})}
    question = Question(options.url, headers, options.model, options.prompt, *bounds, display)
    try:
        answer = asyncio.run(question.ask())
    except KeyboardInterrupt:
        return _INTERRUPTED
    except CommandError as error:
        raise CommandError(plain(str(error), _LONGEST)) from None
    finally:
        display.end()
    if options.json:
        out.write(json.dumps({"url": options.url, **asdict(answer)}) + "\n")
        out.flush()
    display.write_line(answer.figures())
    if options.trace and not options.json:
        for line in answer.trace_lines():
            display.write_line(line)
    # A reader that goes away when it has seen enough is not a failure.
    if printed.failure is not None and not isinstance(printed.failure, BrokenPipeError):
        raise CommandError(f"the answer could not be written: {printed.failure.strerror}")
    return 0


def _check(options: argparse.Namespace) -> None:
    problems = [problem] if (problem := url_problem(options.url)) else []
    if not options.prompt.strip():
        problems.append(f"PROMPT = {options.prompt!r}: must not be blank")
    if options.max_tokens < 1:
        problems.append(f"--max-tokens = {options.max_tokens}: must be at least 1")
    if not 0 < options.timeout < math.inf:
        problems.append(f"--timeout = {options.timeout:g}: must be finite and above 0 seconds")
    if problems:
        raise SettingsError(problems)


@dataclass(slots=True)
class Question:
    """A prompt, its server, and the bounds of the answer. `display` shows the answer."""

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
        """Return the complete answer. Raises CommandError if no complete answer came."""
        import aiohttp  # noqa: PLC0415  the import takes time that other commands need not spend

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
        """Request a chat completion, or a text completion if the model has no chat template."""
        import aiohttp  # noqa: PLC0415

        async with aiohttp.ClientSession(
            headers={"Accept-Encoding": "identity", "User-Agent": "tideserve-ask", **self.headers},
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
            proxy=proxy_for(self.url),
        ) as session:
            model = self.model or await self._first_model(session)
            self.display.begin(model)
            messages = [{"role": "user", "content": self.prompt}]
            try:
                return await self._stream(session, model, "/v1/chat/completions", {"messages": messages})
            except RefusedError as refusal:
                if _NO_CHAT not in str(refusal):
                    raise
            return await self._stream(session, model, "/v1/completions", {"prompt": self.prompt})

    def _state(self) -> str:
        """Return how far the answer had come, as a clause."""
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

    async def _first_model(self, session: "aiohttp.ClientSession") -> str:
        async with self._open_reply(session.get(f"{self._root}/v1/models", allow_redirects=False)) as reply:
            body = await reply.read()
        try:
            return str(json.loads(body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise CommandError(f"{self._root}/v1/models answers, but lists no model") from None

    async def _stream(
        self, session: "aiohttp.ClientSession", model: str, path: str, body: Mapping[str, Any]
    ) -> Answer:
        document = {
            "model": model,
            **body,
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        whole = False
        shows_trace = self.headers.keys() >= _SHOW_TRACE.keys()  # the whole trace comes after [DONE]
        self._wait = None
        self._answer = answer = Answer(model)
        sent = time.monotonic()
        call = session.post(f"{self._root}{path}", json=document, allow_redirects=False)
        async with self._open_reply(call) as reply:
            if reply.content_type != EVENT_STREAM:
                raise CommandError(f"{self._root}{path} answers with {reply.content_type}, not with a stream")
            async for event in read_events(reply.content.iter_any()):
                if isinstance(event, ShownTrace):
                    answer.take_trace(event.document)
                elif not whole and self._take(answer, event, time.monotonic() - sent):
                    whole = True
                    if not shows_trace:
                        return answer
        if whole:
            return answer
        raise CommandError(f"the stream was cut off: it ended without [DONE]; {self._state()}")

    def _take(self, answer: Answer, event: Event | Wait, now_s: float) -> bool:
        """Handle one event. Returns whether the answer is now complete."""
        if isinstance(event, Wait):
            self._wait = event
            self.display.show_wait(event)
            return False
        if event.data == "[DONE]":
            if not answer.tokens:
                raise CommandError("the stream ended with [DONE] and without a token")
            return True
        if event.name == "error" or event.data.startswith('{"error"'):
            words = error_words(event.data.encode("utf-8", "replace"))
            if not answer.pieces:
                raise RefusedError(f"the stream ended in an error: {words}")
            raise CommandError(f"the stream ended in an error after {count(answer.pieces, 'piece')}: {words}")
        try:
            piece = answer.take(event.data, now_s)
        except (ValueError, RecursionError):
            raise CommandError(f"the stream has an event that is no completion: {event.data[:200]}") from None
        if piece is not None:
            self.display.write_piece(piece)
        return False

    @asynccontextmanager
    async def _open_reply(
        self, call: AbstractAsyncContextManager["aiohttp.ClientResponse"]
    ) -> AsyncIterator["aiohttp.ClientResponse"]:
        """Yield a reply with status 200. Raises CommandError with the server's message for any other."""
        async with call as reply:
            if reply.status == HTTPStatus.OK:
                yield reply
                return
            words = f"{reply.url} answers {reply.status}"
            if "Location" in reply.headers:
                raise CommandError(
                    f"{words}: redirected to {reply.headers['Location']}; give --url accordingly"
                )
            data = b""
            while len(data) < _MOST_BYTES and (block := await reply.content.readany()):
                data += block
            words += f": {error_words(data) or reply.reason or 'without a body'}"
            if reply.status == HTTPStatus.UNAUTHORIZED:
                words += f" (the key is taken from {env.API_KEY})"
            if "Retry-After" in reply.headers:
                words += f" (Retry-After: {reply.headers['Retry-After']})"
            raise RefusedError(words)
