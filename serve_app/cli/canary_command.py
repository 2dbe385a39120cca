"""`tideserve canary`: show a new version of a model beside the old one, and change its share."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from serve_app.cli import CommandError
from serve_app.cli.http_client import DEFAULT_URL, ask, check_url
from serve_app.settings.settings_error import SettingsError, shown

_TIMEOUT_S = 10.0
_RULES = ("errors", "length", "empty", "tool_calls")
_NAMES = {
    "errors": "requests that failed",
    "length": "answers at their limit of tokens",
    "empty": "empty answers",
    "tool_calls": "tool calls that are not JSON",
}
_SECONDS = ("ttft_p50_s", "ttft_p95_s", "itl_p50_s", "itl_p95_s")
_COUNTS = ("requests", "refused", "rescued", "copies", "tokens_mean")


def add_command(commands: Any) -> None:
    """Register `canary`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "canary",
        help="show or change the share of a new version of a model",
        description="Show a new version of MODEL beside the old one, or change its share of the "
        "conversations. `promote` gives it all conversations, and `abort` none.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="the model, without its version")
    add("action", nargs="?", choices=("promote", "abort"), help="by default nothing is changed")
    add("--to", metavar="VERSION=SHARE", help="the share, from 0 to 1, such as new=0.25")
    add("--shadow", metavar="SHARE", help="the share of requests of which the version gets copies, 0 to 1")
    add("--url", default=DEFAULT_URL, help=f"URL of the server; by default {DEFAULT_URL}")
    parser.set_defaults(command=run_canary)


def run_canary(options: argparse.Namespace) -> int:
    """Change the share if one is given, and print both versions. Raises SettingsError and CommandError."""
    check_url(options.url)
    change = asked_change(options.action, options.to, options.shadow)
    if change:
        found = _json(options.url, "/autoscaling/canary", {"model": options.model, **change})
        print(f"tideserve: share {found['share']:g}, copies {found['shadow']:g}")
        return 0
    answer = _json(options.url, "/autoscaling/decisions?limit=1")
    models = (answer.get("autoscaler") or {}).get("models", {}).values()
    versions = [each for each in models if each["model"].rpartition("@")[0] == options.model]
    if not versions or "canary" not in versions[0]:
        raise CommandError(f"MODEL = {options.model!r}: the policy has reported no version of it")
    print("\n".join(side_by_side(versions[0]["model"], versions[0]["ready"], versions[0]["canary"])))
    return 0


def asked_change(action: str | None, to: str | None, shadow: str | None) -> dict[str, Any]:
    """Return the change that the options ask for; empty if they ask for none. Raises SettingsError."""
    change: dict[str, Any] = {}
    if action is not None and to is not None:
        raise SettingsError([f"--to = {to!r}: not with {action}, which sets the share"])
    if action is not None:
        change["share"] = 1.0 if action == "promote" else 0.0
    if to is not None:
        change["version"], equals, share = to.partition("=")
        if not equals:
            raise SettingsError([f"--to = {to!r}: must be VERSION=SHARE, such as new=0.25"])
        change["share"] = _share("--to", share)
    if shadow is not None:
        if "share" not in change:
            raise SettingsError([f"--shadow = {shadow!r}: only with --to, promote or abort"])
        change["shadow"] = _share("--shadow", shadow)
    return change


def _share(option: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise SettingsError([f"{option} = {shown(text)}: must be a number, at least 0 and at most 1"])
    return share


def _json(url: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    reply = ask(url, path, _TIMEOUT_S, body=None if body is None else json.dumps(body).encode())
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError):
        raise CommandError(f"{url} answers, but not as Tideserve does: give --url of its API") from None


def side_by_side(version: str, ready: int, canary: Mapping[str, Any]) -> list[str]:
    """Return the lines of both versions: counts, latencies, and shares with their 95 % intervals."""
    lines = [
        f"{version}: share {canary['share']:g}, copies {canary['shadow']:g}, ready replicas {ready}",
        f"  {canary['why']}",
    ]
    if "new" not in canary:
        return [*lines, "  The versions are not compared now."]
    new, old = canary["new"], canary["old"]
    lines.append(f"  {'':34}{'new':>26}{'old':>26}")
    lines += [
        f"  {name.replace('_', ' '):34}{_count(new[name]):>26}{_count(old[name]):>26}"
        for name in (*_COUNTS, *_SECONDS)
    ]
    for rule in _RULES:
        evidence = canary["evidence"].get(rule, 0.0)
        cells = f"{_interval(new[rule]):>26}{_interval(old[rule]):>26}"
        lines.append(f"  {_NAMES[rule]:34}{cells}  evidence {evidence:g}")
    return lines


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _interval(side: Mapping[str, Any]) -> str:
    low, high = (100 * each for each in side["interval"])
    return f"{side['bad']} of {side['of']} ({low:.2g}-{high:.2g} %)"
