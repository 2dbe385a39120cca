"""`tideserve explain`: why the autoscaler has the replicas it has."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode, urlsplit

from pydantic import ValidationError

from serve_app.cli.api_key import authorization
from serve_app.cli.command_error import CommandError
from serve_app.cli.decision_documents import DecisionsDocument, RecordDocument
from serve_app.cli.decision_text import explain, history_line
from serve_app.cli.style import Style, style_for
from serve_app.settings.settings_error import from_pydantic

DEFAULT_URL = "http://127.0.0.1:8000"

_POLL_S = 1.0
_TIMEOUT_S = 10.0
_LIMIT = 200
_FOLLOWED = 500
"""Records asked for while following: all that the policy keeps."""


def add_command(commands: Any) -> None:
    """Register `explain`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain",
        help="explain why the autoscaler has the replicas it has",
        epilog="Exit status: 0; 1 if nothing answers, or if the knobs given last are rejected.",
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"where the API is served; by default {DEFAULT_URL}"
    )
    parser.add_argument("--model", metavar="M", help="one model only")
    parser.add_argument(
        "--limit",
        type=int,
        default=_LIMIT,
        metavar="N",
        help=f"how many records to look at; by default {_LIMIT}",
    )
    parser.add_argument("--follow", action="store_true", help="go on printing decisions as they are made")
    parser.add_argument(
        "--json", action="store_true", help="print what the API answers, and with --follow a record a line"
    )
    parser.set_defaults(command=run_explain)


def run_explain(options: argparse.Namespace) -> int:
    """Print the explanation, and with --follow what comes after it until Ctrl-C."""
    if urlsplit(options.url).scheme not in ("http", "https"):
        raise CommandError(f"--url = {options.url!r}: must be an http(s) URL, such as {DEFAULT_URL}")
    if options.limit < 1:
        raise CommandError(f"--limit = {options.limit}: must be at least 1")
    answer = _ask(options.url, options.model, options.limit)
    document = _read(answer)
    if options.json:
        print(json.dumps(answer, indent=None if options.follow else 2), flush=True)
    else:
        text = explain(document, time.time(), options.model, style=style_for(sys.stdout))
        print(text, end="", flush=True)
    if options.follow:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(options, document)
    return 1 if document.knobs_rejected else 0


class NewRecords:
    """Finds the records that have not been seen before."""

    def __init__(self, seen: DecisionsDocument) -> None:
        self._seen = {_identity(record) for record in seen.decisions}
        self._since = min((record.at for record in seen.decisions), default=float("-inf"))

    def among(self, document: DecisionsDocument) -> list[RecordDocument]:
        """Return the new records, oldest first."""
        known = self._seen
        # The server forgets old records, so its newest answer is all that has to be remembered.
        self._seen = {_identity(record) for record in document.decisions}
        return [
            record
            for record in document.decisions
            if record.at >= self._since and _identity(record) not in known
        ]


def _identity(record: RecordDocument) -> tuple[str, int, float]:
    """Identify a record by its time too, because a new policy may number its records anew."""
    return record.deployment, record.seq, record.at


def _follow(
    options: argparse.Namespace, seen: DecisionsDocument, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Print new records until interrupted; if the server does not answer, say so once and go on asking."""
    new_records = NewRecords(seen)
    style = style_for(sys.stdout)
    away = False
    if not options.json:
        print(f"\nFollowing {options.url}; Ctrl-C ends", flush=True)
    while True:
        sleep(_POLL_S)
        try:
            document = _read(_ask(options.url, options.model, max(options.limit, _FOLLOWED)))
        except CommandError as error:
            if not away:
                print(f"tideserve: {error}", file=sys.stderr, flush=True)
            away = True
            continue
        if away:
            print(f"tideserve: {options.url} answers again", file=sys.stderr, flush=True)
            away = False
        for record in new_records.among(document):
            _print_record(record, options.json, style)


def _print_record(record: RecordDocument, as_json: bool, style: Style) -> None:
    if as_json:
        print(record.model_dump_json(), flush=True)
    else:
        print(history_line(record, style=style, with_model=True), flush=True)


def _ask(url: str, model: str | None, limit: int) -> Any:
    """Return the endpoint's JSON. Raises CommandError if there is none."""
    query = urlencode({**({"model": model} if model else {}), "limit": limit})
    address = f"{url.rstrip('/')}/autoscaling/decisions?{query}"
    request = urllib.request.Request(address)  # noqa: S310 - scheme checked
    for name, value in authorization().items():
        request.add_unredirected_header(name, value)  # a key is for the server it was meant for
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:  # noqa: S310 - scheme checked
            return json.load(reply)
    except urllib.error.HTTPError as error:
        raise CommandError(f"{url} answers {error.code} {error.reason}: {_message(error.read())}") from None
    except (OSError, HTTPException) as error:
        raise CommandError(f"nothing answers at {url}: {getattr(error, 'reason', None) or error}") from None
    except ValueError:
        raise CommandError(f"{url} answers, but not as Tideserve does: give --url of its API") from None


def _message(body: bytes) -> str:
    """Return the message of an OpenAI-shaped error, or the first characters of another body."""
    text = body.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return " ".join(text.split())[:200]


def _read(answer: Any) -> DecisionsDocument:
    try:
        return DecisionsDocument.model_validate(answer)
    except ValidationError as error:
        problem = from_pydantic(error).problems[0]
        raise CommandError(f"the answer is not one of this version of Tideserve: {problem}") from None
