"""`tideserve explain`: why the autoscaler has the replicas it has."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from pydantic import ValidationError

from serve_app.cli import CommandError
from serve_app.cli.explain_layout import DecisionsDocument, RecordDocument, explain, history_line
from serve_app.cli.http_client import (
    DEFAULT_URL,
    NoAnswerError,
    ask,
    authorization,
    check_url,
    fetch,
    other_version,
)
from serve_app.cli.terminal_output import style_for

_POLL_S = 1.0
_TIMEOUT_S = 10.0
_LIMIT = 200
_FOLLOWED = 500
"""Records per request with --follow: all that the policy keeps."""


def add_command(commands: Any) -> None:
    """Register `explain`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain",
        help="explain the current number of replicas",
        description="Explain the autoscaler's newest decision for each model, and list earlier decisions.",
        epilog="Exit status: 1 if no server answers or the newest knobs are rejected, else 0.",
    )
    add = parser.add_argument
    add("--url", default=DEFAULT_URL, help=f"URL of the server; by default {DEFAULT_URL}")
    add("--model", metavar="NAME", help="show only this model")
    limit_help = f"newest decisions to read; by default {_LIMIT}"
    add("--limit", type=int, default=_LIMIT, metavar="N", help=limit_help)
    add("--follow", action="store_true", help="print new decisions until Ctrl-C")
    json_help = "print the API's JSON document, and with --follow one JSON line per new decision"
    add("--json", action="store_true", help=json_help)
    parser.set_defaults(command=run_explain)


def run_explain(options: argparse.Namespace) -> int:
    """Print the explanation, and with --follow new decisions until Ctrl-C."""
    check_url(options.url)
    if options.limit < 1:
        raise CommandError(f"--limit = {options.limit}: must be at least 1")
    answer, document = _ask(options.url, options.model, options.limit)
    if options.json:
        print(json.dumps(answer, indent=None if options.follow else 2), flush=True)
    else:
        document = _with_reasons(document, options.url)
        text = explain(document, time.time(), options.model, style=style_for(sys.stdout))
        print(text, end="", flush=True)
    if options.follow:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(options, document)
    return 1 if document.knobs_rejected else 0


def _follow(
    options: argparse.Namespace, document: DecisionsDocument, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Print new records until interrupted. A server that does not answer is reported once, then retried."""
    oldest = min((record.at for record in document.decisions), default=float("-inf"))
    style = style_for(sys.stdout)
    away = False
    if not options.json:
        print(f"\nFollowing {options.url}. Ctrl-C ends the command.", flush=True)
    while True:
        # The server drops old records, so comparing with its previous answer is enough.
        known = {_identity(record) for record in document.decisions}
        sleep(_POLL_S)
        try:
            _, document = _ask(options.url, options.model, max(options.limit, _FOLLOWED))
        except CommandError as error:
            if not away:
                print(f"tideserve: {error}", file=sys.stderr, flush=True)
            away = True
            continue
        if away:
            print(f"tideserve: {options.url} answers again", file=sys.stderr, flush=True)
            away = False
        for record in document.decisions:
            if record.at >= oldest and _identity(record) not in known:
                line = (
                    record.model_dump_json()
                    if options.json
                    else history_line(record, style=style, with_model=True)
                )
                print(line, flush=True)


def _identity(record: RecordDocument) -> tuple[str, int, float]:
    """Identify a record by its time too, because a new policy may number its records anew."""
    return record.deployment, record.seq, record.at


def _with_reasons(document: DecisionsDocument, url: str) -> DecisionsDocument:
    """Return the document with the reasons of `/ready`, for models that failed or have none from the policy.

    The policy does not know whether Ray Serve has given up.
    """
    status = document.autoscaler
    try:
        ready = json.loads(fetch(f"{url.rstrip('/')}/ready", authorization(), _TIMEOUT_S).body)["models"]
        reasons = {
            name: (str(found["reason"] or ""), found["state"] == "failed") for name, found in ready.items()
        }
    except (NoAnswerError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return document  # the decisions are shown all the same
    if status is None:
        return document
    models = {}
    for name, state in status.models.items():
        reason, failed = reasons.get(state.model, ("", False))
        first, second = (reason, state.reason) if failed else (state.reason, reason)
        models[name] = state.model_copy(update={"reason": first or second, "failed": failed})
    return document.model_copy(update={"autoscaler": status.model_copy(update={"models": models})})


def _ask(url: str, model: str | None, limit: int) -> tuple[Any, DecisionsDocument]:
    """Return the endpoint's JSON, raw and parsed. Raises CommandError without a valid answer."""
    query = urlencode({**({"model": model} if model else {}), "limit": limit})
    body = ask(url, f"/autoscaling/decisions?{query}", _TIMEOUT_S).body
    try:
        answer = json.loads(body)
        return answer, DecisionsDocument.model_validate(answer)
    except ValidationError as error:  # a ValueError too
        raise other_version(error) from None
    except (ValueError, RecursionError):
        raise CommandError(f"{url} answers, but not as Tideserve does: give --url of its API") from None
