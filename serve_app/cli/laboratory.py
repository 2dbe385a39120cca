"""The laboratory's commands: replay, advice, capacity and load tests. They are an optional extra.

This module names the laboratory packages as text, because no serving package may import them.
"""

import argparse
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from serve_app.cli import CommandError

_COMMANDS = {
    "capacity": "replay.capacity.command",
    "replay": "replay.command",
    "advise": "replay.advice.command",
    "loadtest": "loadtests.command",
}
PACKAGES = ("loadtests", "replay", "traces", "benchmarks")
_INSTALL = "pip install 'tideserve[lab]'"


def add_commands(commands: Any) -> None:
    """Register the laboratory's commands. A command that is not installed says how to install it."""
    for name, module in _COMMANDS.items():
        try:
            import_module(module).add_command(commands)
        except ModuleNotFoundError as error:
            # No argument begins with NUL, so all are taken, `--help` too.
            parser: argparse.ArgumentParser = commands.add_parser(
                name, help=f"not installed: {_INSTALL}", add_help=False, prefix_chars="\0"
            )
            parser.add_argument("arguments", nargs=argparse.REMAINDER)
            parser.set_defaults(command=partial(_refuse, name, error))


def load(module: str, purpose: str) -> ModuleType:
    """Import a module of the laboratory for `purpose`. Raises CommandError if the module is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise missing(purpose, error) from None


def missing(purpose: str, error: ModuleNotFoundError) -> CommandError:
    """Return the error for a missing laboratory, or for a missing package that the laboratory needs."""
    return CommandError(f"{purpose} needs the laboratory, and {error.name} is not installed: {_INSTALL}")


def _refuse(name: str, error: ModuleNotFoundError, _: argparse.Namespace) -> int:
    raise missing(f"`tideserve {name}`", error)
