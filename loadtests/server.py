"""The server under test: its models and their contexts, or a server of the command's own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from loadtests.plan import Planned
from serve_app.cli.command_error import CommandError
from serve_app.cli.listening import free_port
from serve_app.cli.progress import ask_ready

_TIMEOUT = aiohttp.ClientTimeout(total=15.0)
_SHOWN = 300


class ServerError(Exception):
    """A server that cannot be tested. One sentence for the user, with what to do about it."""


@dataclass(frozen=True, slots=True)
class Served:
    """The models of a server, with their context lengths where it tells them, and its version."""

    context: Mapping[str, int | None]
    version: str = ""


async def served(session: aiohttp.ClientSession, url: str) -> Served:
    """Ask `url` what it serves.

    Raises ServerError if nothing answers there, or not as the OpenAI API does.
    """
    document = await _json(session, f"{url}/v1/models")
    try:
        models = {str(model["id"]): _length(model.get("max_model_len")) for model in document["data"]}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ServerError(f"{url}/v1/models answers, but not as the OpenAI API does") from None
    if not models:
        raise ServerError(f"{url}/v1/models lists no model")
    return Served(models, await _version(session, url))


def choose_model(found: Served, given: str | None) -> str:
    """The model of requests that name none.

    Raises ServerError if it is not served, or several are and none is given.
    """
    known = ", ".join(found.context)
    if given is None:
        if len(found.context) > 1:
            raise ServerError(f"several models are served: give --model, one of {known}")
        return next(iter(found.context))
    if given not in found.context:
        raise ServerError(f"--model = {given!r}: not served; there are {known}")
    return given


def check_plan(planned: Sequence[Planned], found: Served, default: str) -> None:
    """Find out before the run what the server would refuse in its middle.

    Raises ServerError for a model that is not served, or a request longer than its model's context.
    """
    longest: dict[tuple[str, str], Planned] = {}
    for request in planned:
        key = request.kind, request.model or default
        known = longest.get(key)
        if known is None or _tokens(request) > _tokens(known):
            longest[key] = request
    for (kind, model), request in longest.items():
        if model not in found.context:
            raise ServerError(
                f"requests of kind {kind!r}: model = {model!r} is not served; "
                f"there are {', '.join(found.context)}"
            )
        context = found.context[model]
        if context is not None and _tokens(request) > context:
            raise ServerError(
                f"requests of kind {kind!r}: {request.prompt_tokens} tokens of a prompt and "
                f"{request.output_tokens} of its answer exceed max_model_len = {context} of {model}"
            )


def _tokens(request: Planned) -> int:
    return request.prompt_tokens + request.output_tokens


def _length(value: Any) -> int | None:
    return None if value is None else int(value)


async def _version(session: aiohttp.ClientSession, url: str) -> str:
    try:
        info = (await _json(session, f"{url}/openapi.json"))["info"]
        return f"{info['title']} {info['version']}"
    except (ServerError, KeyError, TypeError):
        return ""  # a gateway may hide it; nothing but the report's footer misses it


async def _json(session: aiohttp.ClientSession, url: str) -> Any:
    try:
        # The requests would not follow a redirect: each would be two, and timed as one.
        async with session.get(url, timeout=_TIMEOUT, allow_redirects=False) as reply:
            text = (await reply.read()).decode(errors="replace")
            if "Location" in reply.headers:
                raise ServerError(f"{url} redirects to {reply.headers['Location']}; give --url accordingly")
            if reply.status != 200:
                raise ServerError(f"{url} answers {reply.status}: {' '.join(text.split())[:_SHOWN]}")
            return json.loads(text)
    except (aiohttp.ClientError, OSError) as error:
        raise ServerError(f"nothing answers at {url}: {error or type(error).__name__}") from None
    except (ValueError, RecursionError):
        raise ServerError(f"{url} answers, but not with JSON") from None


_START_S = 600.0
_STOP_S = 60.0
_KILLED_WITHIN_S = 10.0
_FAILED_S = 20.0
"""A model that fails to start is tried again some times; one that has failed for so long is not."""
_POLL_S = 0.5
_TAIL = 2000


@contextmanager
def own_server(config: Path, log: Path, say: Callable[[str], None]) -> Iterator[str]:
    """`tideserve run CONFIG` on a free port, while the block runs; gives its URL.

    Its output goes to `log`.

    Raises:
        CommandError: if it ends before it is ready, a model has failed, or it is not ready in ten minutes.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "serve_app.cli.main", "run", str(config), "--port", str(port)]
    command += ["--verbose", "--stop-with-parent", str(os.getpid())]
    with log.open("wb") as output:
        # A group of its own, so that a terminal's Ctrl-C reaches us alone, and no session of its own: see
        # `tideserve run`.
        server = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, process_group=0
        )
    try:
        _wait(server, url, log, say)
        yield url
    finally:
        say("stopping the server")
        server.send_signal(signal.SIGINT)
        try:
            server.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            with suppress(subprocess.TimeoutExpired):  # the kernel may not end it: a GPU or a disk hangs
                server.wait(_KILLED_WITHIN_S)
            say(
                f"the server did not stop within {_STOP_S:g} s and was killed (process {server.pid}); "
                f"see {log}"
            )


def _wait(server: subprocess.Popen[bytes], url: str, log: Path, say: Callable[[str], None]) -> None:
    well = time.monotonic()
    end = well + _START_S
    said: dict[str, str] = {}
    while time.monotonic() < end:
        if server.poll() is not None:
            raise CommandError(f"the server ended before it was ready:\n{_tail(log)}")
        ready, models = ask_ready(url)
        for name, model in models.items():
            phase = str(model.get("phase") or model.get("state"))
            if said.get(name) != phase:
                said[name] = phase
                say(f"{name}: {phase}")
        if ready:
            return
        failed = [f"{name}: {m.get('reason')}" for name, m in models.items() if m.get("state") == "failed"]
        if not failed:
            well = time.monotonic()
        elif time.monotonic() - well > _FAILED_S:
            raise CommandError(f"a model failed: {'; '.join(failed)}; see {log}")
        time.sleep(_POLL_S)
    raise CommandError(f"the server is not ready after {_START_S:g} s; see {log}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-_TAIL:]
