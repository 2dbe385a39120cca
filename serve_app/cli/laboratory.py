"""The laboratory's commands: replay, advice, capacity and load tests, which serve nobody and are an extra.

Their packages are named here as text: nothing that serves imports them.
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from serve_app.cli.failure import CommandError

_COMMANDS = {
    "capacity": "replay.capacity.command",
    "replay": "replay.command",
    "advise": "replay.advice.command",
    "loadtest": "loadtests.command",
}
PACKAGES = ("loadtests", "replay", "benchmarks")


def add_commands(commands: Any) -> None:
    """Register the laboratory's commands; one that is not installed says how to install it."""
    for name, module in _COMMANDS.items():
        try:
            import_module(module).add_command(commands)
        except ModuleNotFoundError as error:
            parser: argparse.ArgumentParser = commands.add_parser(name, help="not installed", add_help=False)
            parser.add_argument("arguments", nargs=argparse.REMAINDER)
            parser.set_defaults(command=partial(_refuse, name, error))


def load(module: str, purpose: str) -> ModuleType:
    """A module of the laboratory. Raises CommandError where it is missing: `purpose` needs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise missing(purpose, error) from None


def missing(purpose: str, error: ModuleNotFoundError) -> CommandError:
    """What to tell the user where the laboratory, or a package that it needs, is not installed."""
    return CommandError(
        f"{purpose} needs the laboratory, and {error.name} is not installed: pip install 'tideserve[lab]'"
    )


def _refuse(name: str, error: ModuleNotFoundError, _: argparse.Namespace) -> int:
    raise missing(f"`tideserve {name}`", error)
