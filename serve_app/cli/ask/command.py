"""`tideserve ask`: one streamed chat, to see that a deployment answers, and how fast."""

import argparse
import asyncio
import json
import math
import sys
from dataclasses import asdict
from io import StringIO
from typing import Any, TextIO, cast
from urllib.parse import urlsplit

from serve_app import env
from serve_app.cli.command_error import CommandError
from serve_app.cli.http_client import DEFAULT_URL, authorization
from serve_app.settings.settings_error import SettingsError

PROMPT = "Tell me about the sea."
_MAX_TOKENS = 128
_TIMEOUT_S = 600.0
"""The default of `cold_wait_timeout_s`, for which a request is held."""
_LONGEST = 1000
"""The most characters that are printed of a server's error."""
_INTERRUPTED = 130
"""The status that a shell reports for a process that Ctrl-C ended."""


def add_command(commands: Any) -> None:
    """Register `ask`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "ask",
        help="send one prompt and print the answer as it comes",
        description="Stream one chat completion. The answer goes to standard output; the wait for it and "
        "the figures at the end go to standard error.",
        epilog="Exit status: 0 if a complete answer came, 1 if not, 130 after Ctrl-C. "
        f"If {env.API_KEY} is set, it is sent as a bearer token.",
    )
    add = parser.add_argument
    add("prompt", nargs="?", default=PROMPT, metavar="PROMPT", help=f"text to send; by default {PROMPT!r}")
    add("--url", default=DEFAULT_URL, help=f"URL of the server; by default {DEFAULT_URL}")
    add("--model", metavar="NAME", help="model to ask; by default the first that the server lists")
    tokens_help = f"length of the answer; by default {_MAX_TOKENS}"
    add("--max-tokens", type=int, default=_MAX_TOKENS, metavar="N", help=tokens_help)
    timeout_help = f"time limit for the whole answer, a cold start included; by default {_TIMEOUT_S:g}"
    add("--timeout", type=float, default=_TIMEOUT_S, metavar="SECONDS", help=timeout_help)
    add("--json", action="store_true", help="print one JSON document at the end instead of the text")
    parser.set_defaults(command=run_ask)


def run_ask(options: argparse.Namespace) -> int:
    """Send the prompt and print what comes back."""
    _check(options)
    # aiohttp takes time to import, which the other commands need not spend.
    from serve_app.cli.ask.display import Display  # noqa: PLC0415
    from serve_app.cli.ask.request import Question  # noqa: PLC0415
    from serve_app.cli.formats import plain  # noqa: PLC0415
    from serve_app.cli.terminal_output import LastingStream  # noqa: PLC0415

    # A stream that the shell has closed is None.
    printed, told = (LastingStream(stream or StringIO()) for stream in (sys.stdout, sys.stderr))
    out = cast(TextIO, printed)
    display = Display(None if options.json else out, cast(TextIO, told))
    bounds = options.max_tokens, options.timeout
    question = Question(options.url, authorization(), options.model, options.prompt, *bounds, display)
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
    display.line(answer.figures())
    # A reader that goes away when it has seen enough is not a failure.
    if printed.failure is not None and not isinstance(printed.failure, BrokenPipeError):
        raise CommandError(f"the answer could not be written: {printed.failure.strerror}")
    return 0


def _check(options: argparse.Namespace) -> None:
    problems = []
    try:
        parts = urlsplit(options.url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        login = parts.username is not None
    except ValueError:  # an invalid port or IPv6 address
        good = login = False
    if login:  # it would appear in messages, and there is only one Authorization header
        problems.append(f"--url: must not contain a user name or password; the key in {env.API_KEY} is sent")
    elif not good:
        problems.append(f"--url = {options.url!r}: must be an http(s) URL, such as {DEFAULT_URL}")
    if not options.prompt.strip():
        problems.append(f"PROMPT = {options.prompt!r}: must not be blank")
    if options.max_tokens < 1:
        problems.append(f"--max-tokens = {options.max_tokens}: must be at least 1")
    if not 0 < options.timeout < math.inf:
        problems.append(f"--timeout = {options.timeout:g}: must be finite and above 0 seconds")
    if problems:
        raise SettingsError(problems)
