"""`tideserve keys`: make an API key, and check a file of keys."""

import argparse
import secrets
import sys
import textwrap
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from serve_app.cli.formats import count
from serve_app.settings.caller import LANES
from serve_app.settings.keys_file import DIGEST, ApiKey, KeysFile, parse_keys
from serve_app.settings.settings_error import SettingsError, from_pydantic

_PREFIX = "sk-tide-"
"""Scanners for leaked secrets can look for it."""
_BYTES = 32


def add_command(commands: Any) -> None:
    """Register `keys` with its `new` and `check`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "keys", help="make an API key, or check a file of keys", description="Make and check API keys."
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    new = actions.add_parser(
        "new",
        help="make a key, and print its entry for the file of keys",
        description="Make a key. The entry for the file of keys goes to standard output. The key goes to "
        "standard error, and is stored nowhere.",
    )
    new.add_argument("name", metavar="NAME", help="the key's name in metrics, logs and the ledger")
    new.add_argument("--lane", choices=LANES, help="the class of the work; by default standard")
    new.add_argument("--weight", metavar="W", help="the share of tokens within the lane; by default 1")
    for limit in ("tokens_per_minute", "requests_per_minute", "concurrent_requests"):
        words = limit.replace("_", " ")
        new.add_argument(f"--{limit.replace('_', '-')}", metavar="N", help=f"the most {words}")
    new.add_argument(
        "--model", dest="models", action="append", metavar="PATTERN", help="an allowed model; may be repeated"
    )
    new.add_argument("--expires", metavar="TIME", help="the end of the key, such as 2027-01-31T00:00:00Z")
    new.add_argument(
        "--metadata", type=_pair, action="append", default=[], metavar="NAME=TEXT",
        help="a note, such as team=shop; may be repeated",
    )  # fmt: skip
    rate_help = "serve requests above a rate in the lane background, in place of refusing them"
    new.add_argument("--work-conserving", action="store_true", default=None, help=rate_help)
    new.add_argument(
        "--admin", action="store_true", default=None, help="see all usage, and change knobs over HTTP"
    )
    new.set_defaults(command=new_key)
    check = actions.add_parser("check", help="check a file of keys")
    check.add_argument("file", type=Path, metavar="FILE", help="a file for http.api_keys_file")
    check.set_defaults(command=check_keys)


def new_key(options: argparse.Namespace) -> int:
    """Print a new key and its entry. Raises SettingsError for invalid options."""
    key = _PREFIX + secrets.token_urlsafe(_BYTES)
    fields = {name: getattr(options, name, None) for name in ApiKey.model_fields}
    fields["metadata"] = dict(options.metadata)
    fields["hash"] = DIGEST + sha256(key.encode()).hexdigest()
    try:
        entry = ApiKey.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise from_pydantic(error) from None
    text = yaml.safe_dump([entry.model_dump(mode="json", exclude_defaults=True)], sort_keys=False)
    print(textwrap.indent(text, "  "), end="")
    print(f"API key (shown only once): {key}", file=sys.stderr)
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: must be NAME=TEXT")
    return name, value


def check_keys(options: argparse.Namespace) -> int:
    """Print a summary of a file of keys. Raises SettingsError if it is invalid."""
    print(f"{options.file}: {describe_keys(options.file)}")
    return 0


def describe_keys(path: Path) -> str:
    """Return a summary of a file of keys. Raises SettingsError if it is invalid or unreadable."""
    try:
        found = parse_keys(path.read_bytes())
    except SettingsError as error:
        raise SettingsError([f"{path}: {problem}" for problem in error.problems]) from None
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror}"]) from None
    return "; ".join([count(len(found.keys), "key"), *_warnings(found)])


def _warnings(found: KeysFile) -> list[str]:
    now = time.time()
    expired = [key.name for key in found.keys if key.expires_at is not None and key.expires_at <= now]
    named = (("expired", expired), ("in plain text", found.plain))
    return [f"{what}: {', '.join(names)}" for what, names in named if names]
