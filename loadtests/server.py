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
from serve_app.cli import CommandError
from serve_app.cli.listening import free_port
from serve_app.cli.progress import ask_ready

_TIMEOUT = aiohttp.ClientTimeout(total=15.0)
_LONGEST_ANSWER = 300
_START_S = 600.0
_STOP_S = 60.0
_KILL_S = 10.0
_FAILED_S = 20.0
"""A model that fails to start is tried again; after this long it is given up."""
_POLL_S = 0.5
_LOG_TAIL = 2000


class ServerError(Exception):
    """A server that cannot be tested. One sentence for the user, with the remedy."""


@dataclass(frozen=True, slots=True)
class Served:
    """The models of a server, with their context lengths where it gives them, and its version."""

    context: Mapping[str, int | None]
    version: str = ""


async def ask_server(session: aiohttp.ClientSession, url: str) -> Served:
    """Ask `url` which models it serves, without waking any.

    Raises ServerError if nothing answers there, or not as the OpenAI API does.
    """
    document = await _json(session, f"{url}/v1/models")
    try:
        listed = ((str(model["id"]), model.get("max_model_len")) for model in document["data"])
        models = {name: None if length is None else int(length) for name, length in listed}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ServerError(f"{url}/v1/models answers, but not as the OpenAI API does") from None
    for model in document["data"]:
        if model.get("root") in models and model["root"] != model["id"]:
            del models[str(model["id"])]  # an alias: load on it is load on its model
    if not models:
        raise ServerError(f"{url}/v1/models lists no model")
    try:
        info = (await _json(session, f"{url}/openapi.json"))["info"]
        version = f"{info['title']} {info['version']}"
    except (ServerError, KeyError, TypeError):
        version = ""  # a gateway may hide it, and only the report's footer needs it
    return Served(models, version)


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
    """Refuse before the run a request that the server would refuse in its middle.

    Raises ServerError for a model that is not served, or a request longer than its model's context.
    """

    def tokens(request: Planned) -> int:
        return request.prompt_tokens + request.output_tokens

    longest: dict[tuple[str, str], Planned] = {}
    for request in planned:
        key = request.kind, request.model or default
        longest[key] = max(longest.get(key, request), request, key=tokens)
    for (kind, model), request in longest.items():
        if model not in found.context:
            known = ", ".join(found.context)
            raise ServerError(
                f"requests of kind {kind!r}: model = {model!r} is not served; there are {known}"
            )
        context = found.context[model]
        if context is not None and tokens(request) > context:
            raise ServerError(
                f"requests of kind {kind!r}: {request.prompt_tokens} tokens of a prompt and "
                f"{request.output_tokens} of its answer exceed max_model_len = {context} of {model}"
            )


async def _json(session: aiohttp.ClientSession, url: str) -> Any:
    try:
        # The requests would not follow a redirect: each would be two, and timed as one.
        async with session.get(url, timeout=_TIMEOUT, allow_redirects=False) as reply:
            text = (await reply.read()).decode(errors="replace")
            if "Location" in reply.headers:
                raise ServerError(f"{url} redirects to {reply.headers['Location']}; give --url accordingly")
            if reply.status != 200:
                raise ServerError(f"{url} answers {reply.status}: {' '.join(text.split())[:_LONGEST_ANSWER]}")
            return json.loads(text)
    except (aiohttp.ClientError, OSError) as error:
        raise ServerError(f"nothing answers at {url}: {error or type(error).__name__}") from None
    except (ValueError, RecursionError):
        raise ServerError(f"{url} answers, but not with JSON") from None


@contextmanager
def own_server(config: Path, log: Path, say: Callable[[str], None]) -> Iterator[str]:
    """`tideserve run CONFIG` on a free port while the block runs. Yields its URL; its output goes to `log`.

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
            command,
            env={
                "RAY_metrics_report_interval_ms": "1000",
                **os.environ,
            },  # a value for each second
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        _wait_until_ready(server, url, log, say)
        yield url
    finally:
        say("stopping the server")
        server.send_signal(signal.SIGINT)
        try:
            server.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            with suppress(subprocess.TimeoutExpired):  # the kernel may not end it: a GPU or a disk hangs
                server.wait(_KILL_S)
            killed = f"did not stop within {_STOP_S:g} s and was killed (process {server.pid})"
            say(f"the server {killed}; see {log}")


def _wait_until_ready(
    server: subprocess.Popen[bytes], url: str, log: Path, say: Callable[[str], None]
) -> None:
    well = time.monotonic()
    end = well + _START_S
    phases: dict[str, str] = {}
    while time.monotonic() < end:
        if server.poll() is not None:
            tail = log.read_text(errors="replace")[-_LOG_TAIL:]
            raise CommandError(f"the server ended before it was ready:\n{tail}")
        ready, models = ask_ready(url)
        for name, model in models.items():
            phase = str(model.get("phase") or model.get("state"))
            if phases.get(name) != phase:
                phases[name] = phase
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
