"""`tideserve usage`: the tokens, GPU-seconds and money of each API key, lane, model or variant."""

import argparse
import sys
from typing import Any, get_args
from urllib.parse import urlencode

from pydantic import ValidationError

from serve_app.cli.formats import columns, plain, whole
from serve_app.cli.http_client import DEFAULT_URL, Document, ask, check_url, other_version
from serve_app.ledger.usage import UNWRITTEN_SINCE, By

_TIMEOUT_S = 15.0
_COLUMNS = ("requests", "prompt", "cached", "completion", "GPU s")


class _Used(Document):
    key: str = ""
    lane: str = ""
    model: str = ""
    variant: str = ""
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    gpu_seconds: float = 0.0
    cost: float = 0.0
    state: str = ""
    """What a GPU did that no request used."""


class _Budget(Document):
    budget: str
    usd: float
    per: str
    spent: float
    reserved: float
    left: float
    until: str


class UsageDocument(Document):
    """The answer of `GET /usage`."""

    by: str
    since: str
    until: str
    currency: str
    data: tuple[_Used, ...]
    unused: tuple[_Used, ...]
    total: _Used
    budgets: tuple[_Budget, ...] = ()


def add_command(commands: Any) -> None:
    """Register `usage`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "usage",
        help="print what each API key used: tokens, GPU-seconds, money",
        description="Print the tokens, GPU-seconds and money of each API key, lane, model or variant. With "
        "an API key that is not an admin key, the server answers only with the key's own usage.",
        epilog="Times are ISO 8601 dates or times, Unix seconds, or durations before now: 90m, 24h, 7d, 2w.",
    )
    add = parser.add_argument
    add("--url", default=DEFAULT_URL, help=f"URL of the server; by default {DEFAULT_URL}")
    add("--by", choices=get_args(By), default="key", help="what to sum by; by default key")
    add("--since", default="24h", metavar="TIME", help="begin; by default 24h")
    add("--until", default="0m", metavar="TIME", help="end; by default now")
    add("--csv", action="store_true", help="print CSV")
    parser.set_defaults(command=print_usage)


def print_usage(options: argparse.Namespace) -> int:
    """Print the usage that the server returns."""
    check_url(options.url)
    query = {"by": options.by, "since": options.since, "until": options.until}
    if options.csv:
        print(_ask(options.url, query | {"format": "csv"}).decode(), end="")
        return 0
    try:
        document = UsageDocument.model_validate_json(_ask(options.url, query))
    except ValidationError as error:
        raise other_version(error) from None
    print(usage_text(document))
    return 0


def _ask(url: str, query: dict[str, str]) -> bytes:
    reply = ask(url, f"/usage?{urlencode(query)}", _TIMEOUT_S)
    if since := reply.headers.get(UNWRITTEN_SINCE):
        print(
            f"Warning: these figures are old. The ledger stores no usage since {plain(since)}.",
            file=sys.stderr,
        )
    return reply.body


def usage_text(document: UsageDocument) -> str:
    """Return a table: the usage by name, then unused GPU time by state, then the total."""
    head = (document.by, *_COLUMNS, document.currency)
    used = [_row(plain(getattr(each, document.by)) or "(no key)", each) for each in document.data]
    unused = [(each.state, "", "", "", "", *_row("", each)[-2:]) for each in document.unused]
    rows = [head, *used, *unused, _row("total", document.total)]
    lines = columns(rows)
    rule = "-" * max(map(len, lines))
    lines.insert(len(lines) - 1, rule)
    if unused and used:
        lines.insert(1 + len(used), rule)
    if document.budgets:
        heads = ("budget", "USD", "per", "spent", "reserved", "left", "renews")
        lines += ["", *columns([heads, *map(_budget_row, document.budgets)], left=(0, 2, 6))]
    return "\n".join([f"{document.since} to {document.until}", "", *lines])


def _budget_row(of: _Budget) -> tuple[str, ...]:
    spent, reserved, left = (f"{amount:,.2f}" for amount in (of.spent, of.reserved, of.left))
    return plain(of.budget), f"{of.usd:,.2f}", of.per, spent, reserved, left, plain(of.until)


def _row(name: str, amounts: _Used) -> tuple[str, ...]:
    tokens = (amounts.prompt_tokens, amounts.cached_tokens, amounts.completion_tokens)
    return (
        name,
        whole(amounts.requests),
        *map(whole, tokens),
        f"{amounts.gpu_seconds:,.1f}",
        f"{amounts.cost:,.2f}",
    )
