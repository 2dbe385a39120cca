"""`tideserve batch`: submit, list, show, cancel and fetch batches."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_app.cli import CommandError, RefusedError
from serve_app.cli.formats import columns, count, plain, seconds, whole
from serve_app.cli.http_client import DEFAULT_URL, check_url

if TYPE_CHECKING:
    from serve_app.cli.batch_api import BatchApi

_POLL_S = 1.0
_WINDOW = re.compile("[1-9][0-9]{0,2}h")
_BAR = 30
"""Characters of the progress bar."""
_ENDED = ("completed", "failed", "expired", "cancelled")
_INTERRUPTED = 130
"""A shell's exit status for a process that Ctrl-C ended."""
_CHUNK_BYTES = 1 << 20


def add_command(commands: Any) -> None:
    """Register `batch`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "batch",
        help="submit, list, show, cancel and fetch batches",
        description="Work with batches: files of requests that use idle GPU time.",
        epilog="Exit status: 1 if the command failed, or if the batch did not complete or has no answers.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    def add(name: str, run: Callable[[BatchApi, argparse.Namespace], Awaitable[int]], text: str) -> Any:
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        action.add_argument("--url", default=DEFAULT_URL, help=f"URL of the server; by default {DEFAULT_URL}")
        action.set_defaults(command=lambda options: _run(run, options))
        return action

    submit = add("submit", _submit, "upload a file of requests, and create a batch of it")
    submit.add_argument("file", type=Path, metavar="FILE.jsonl", help="one request per line")
    submit.add_argument("--endpoint", metavar="PATH", help="by default the `url` of the first line")
    submit.add_argument("--window", default="24h", metavar="Nh", help="completion window; by default 24h")
    submit.add_argument("--metadata", action="append", default=[], metavar="NAME=VALUE", help="a note")
    submit.add_argument("--wait", action="store_true", help="show the progress until the batch has ended")
    ls = add("ls", _list, "list the newest batches")
    ls.add_argument("--limit", type=int, default=20, metavar="N", help="how many; by default 20")
    for name, run, text in (
        ("show", _show, "print a batch as JSON"),
        ("wait", _wait_for, "show the progress of a batch until it has ended"),
        ("cancel", _cancel, "cancel a batch; its answers so far are kept"),
        ("fetch", _fetch, "print the answers of a batch that has ended"),
    ):
        action = add(name, run, text)
        action.add_argument("id", metavar="BATCH")
        if name == "fetch":
            action.add_argument("--output", type=Path, metavar="FILE", help="by default standard output")
            errors_help = "where to write the lines that failed; by default they are only counted"
            action.add_argument("--errors", type=Path, metavar="FILE", help=errors_help)


def _run(
    action: Callable[[BatchApi, argparse.Namespace], Awaitable[int]], options: argparse.Namespace
) -> int:
    check_url(options.url)

    from serve_app.cli.batch_api import BatchApi  # noqa: PLC0415  aiohttp takes time that others need not

    async def within_session() -> int:
        async with BatchApi.open(options.url) as api:
            return await action(api, options)

    try:
        return asyncio.run(within_session())
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        raise CommandError(f"{error.filename or options.url}: {error.strerror or error}") from None


async def _submit(api: BatchApi, options: argparse.Namespace) -> int:
    if not _WINDOW.fullmatch(options.window):  # the file would be uploaded first
        raise CommandError(f"--window = {options.window!r}: must be 1h to 168h")
    endpoint = options.endpoint or _endpoint_of(options.file)
    metadata = dict(_pair(text) for text in options.metadata)
    body = {
        "input_file_id": await api.upload(options.file),
        "endpoint": endpoint,
        "completion_window": options.window,
        **({"metadata": metadata} if metadata else {}),
    }
    batch = await api.create(body)
    print(batch["id"], flush=True)
    return await _wait(api, batch["id"]) if options.wait else 0


def _endpoint_of(path: Path) -> str:
    """Return the `url` of the first line of a file."""
    with path.open("rb") as file:
        try:
            endpoint = json.loads(file.readline(_CHUNK_BYTES))["url"]
        except (ValueError, KeyError, TypeError, RecursionError):
            endpoint = None
    if not isinstance(endpoint, str):
        raise CommandError(f"{path}: no `url` found in the first line; give --endpoint")
    return endpoint


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise CommandError(f"--metadata = {text!r}: must be NAME=VALUE")
    return name, value


async def _list(api: BatchApi, options: argparse.Namespace) -> int:
    if not 1 <= options.limit <= 100:
        raise CommandError(f"--limit = {options.limit}: must be from 1 to 100")
    batches = await api.newest(options.limit)
    rows = [("batch", "status", "done", "failed", "of", "created", "model")]
    for batch in batches:
        counts = batch["request_counts"]
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(batch["created_at"]))
        done = (whole(counts[name]) for name in ("completed", "failed", "total"))
        rows.append((batch["id"], batch["status"], *done, created, plain(batch.get("model") or "-")))
    print(*columns(rows, left=(0, 1, 5, 6)), sep="\n")
    return 0


async def _show(api: BatchApi, options: argparse.Namespace) -> int:
    print(json.dumps(await api.batch(options.id), indent=2))
    return 0


async def _cancel(api: BatchApi, options: argparse.Namespace) -> int:
    batch = await api.cancel(options.id)
    print(f"{batch['id']}: {batch['status']}")
    return 0


async def _wait_for(api: BatchApi, options: argparse.Namespace) -> int:
    return await _wait(api, options.id)


async def _fetch(api: BatchApi, options: argparse.Namespace) -> int:
    batch = await api.batch(options.id)
    if batch["status"] not in _ENDED:
        raise CommandError(f"{options.id} is {batch['status']}; its answers are there when it has ended")
    for file_id, path, printed in (
        (batch["output_file_id"], options.output, True),
        (batch["error_file_id"], options.errors, False),
    ):
        if path is not None:
            with path.open("wb") as file:  # without lines it becomes empty: an old one is of another batch
                if file_id is not None:
                    await api.save(file_id, file.write)
        elif file_id is not None and printed:
            await api.save(file_id, sys.stdout.buffer.write)
            sys.stdout.flush()
    print(_summary(batch), file=sys.stderr)
    return 0 if batch["status"] == "completed" and batch["output_file_id"] is not None else 1


async def _wait(api: BatchApi, batch_id: str) -> int:
    """Show the progress on standard error until the batch has ended. Asks an absent or busy server again."""
    first = batch = await api.batch(batch_id)
    shown, trouble, began = "", "", time.monotonic()
    while True:
        rate = (_done(batch) - _done(first)) / max(time.monotonic() - began, _POLL_S)
        line = trouble or progress_line(batch, rate)
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif line != shown:
            print(line, file=sys.stderr, flush=True)
        shown = line
        if batch["status"] in _ENDED:
            print(file=sys.stderr, end="\n" if sys.stderr.isatty() else "")
            print(_summary(batch), file=sys.stderr)
            return 0 if batch["status"] == "completed" else 1
        await asyncio.sleep(_POLL_S)
        try:
            batch, trouble = await api.batch(batch_id), ""
        except RefusedError:
            raise
        except CommandError as error:
            trouble = str(error)


def _done(batch: Mapping[str, Any]) -> int:
    return int(batch["request_counts"]["completed"] + batch["request_counts"]["failed"])


def progress_line(batch: Mapping[str, Any], per_s: float) -> str:
    """Return a bar, the counts, the rate and the time left."""
    done, total, failed = _done(batch), batch["request_counts"]["total"], batch["request_counts"]["failed"]
    if not total:
        return str(batch["status"])
    filled = int(_BAR * done / total)
    parts = [f"[{'#' * filled}{'.' * (_BAR - filled)}] {done:,} of {count(total, 'line')}"]
    if failed:
        parts.append(f"{failed:,} failed")
    if per_s > 0 and done < total:
        parts.append(f"{per_s:.3g} lines/s, about {seconds((total - done) / per_s)} left")
    return f"{batch['status']} {', '.join(parts)}"


def _summary(batch: Mapping[str, Any]) -> str:
    """Return one line about a batch that has ended."""
    counts, errors = batch["request_counts"], (batch.get("errors") or {}).get("data") or []
    text = f"{batch['id']}: {batch['status']}; {counts['completed']:,} of {count(counts['total'], 'line')}"
    if counts["failed"]:
        text += f", {counts['failed']:,} failed"
    for error in errors[:5]:
        where = "" if error.get("line") is None else f"line {error['line']}: "
        text += f"\n  {where}{plain(error.get('message') or error.get('code') or '', 300)}"
    return text if len(errors) <= 5 else f"{text}\n  … and {len(errors) - 5} more"
