"""The commands of the laboratory where its packages, or those that it needs, are not installed."""

import argparse
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from serve_app.cli import CommandError, check, laboratory
from serve_app.cli.knobs_command import parse_arguments
from serve_app.cli.main import main

INSTALL = "pip install 'tideserve[lab]'"


WITHOUT_THE_LABORATORY = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {laboratory.PACKAGES}:
            raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Absent())
from serve_app.cli.main import main
sys.exit(main())
"""


def tideserve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that finds none of the laboratory's packages."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_LABORATORY, *arguments],
        env={**os.environ, "COLUMNS": "200"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_says_which_commands_are_not_installed() -> None:
    done = tideserve("--help")

    assert (done.returncode, done.stderr) == (0, "")
    listed = dict(re.findall(r"^    (\S+)\s+(\S.*)$", done.stdout, re.MULTILINE))
    assert listed["run"].startswith("start Ray")
    for name in ("capacity", "replay", "advise", "loadtest"):
        assert listed[name] == f"not installed: {INSTALL}"


def test_missing_laboratory_command_says_how_to_install() -> None:
    done = tideserve("replay", "--out", "x", "log.jsonl")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"tideserve: `tideserve replay` needs the laboratory, and replay is not installed: {INSTALL}\n"
    )


def command_that_imports(package: str, module: str) -> Any:
    """A stand-in for `run.add_command`, whose command is in `module` and imports `package`."""

    def needs_it(_: argparse.Namespace) -> int:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    needs_it.__module__ = module

    def add_command(commands: Any) -> None:
        commands.add_parser("check").set_defaults(command=needs_it)

    return add_command


def test_only_a_laboratory_command_names_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "add_command", command_that_imports("matplotlib", "loadtests.command"))
    assert main(["check"]) == 1
    assert capsys.readouterr().err == (
        f"tideserve: this command needs the laboratory, and matplotlib is not installed: {INSTALL}\n"
    )

    monkeypatch.setattr(check, "add_command", command_that_imports("ray", "serve_app.cli.check"))
    with pytest.raises(ModuleNotFoundError, match="ray"):
        main(["check"])


def test_only_fleet_files_need_the_laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "replay.profile", None)

    assert parse_arguments(["tide", "headroom=1"]) == ("tide", {"headroom": 1})
    with pytest.raises(CommandError, match="starting_values=@FILE needs the laboratory, and replay"):
        parse_arguments(["tide", "starting_values=@fleet.yaml"])
