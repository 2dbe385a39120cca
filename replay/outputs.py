"""The files that a replay leaves: all of them, whole, or none."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_app.cli.command_error import CommandError
from serve_app.settings.settings_error import SettingsError

if TYPE_CHECKING:
    from replay.result import Result

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files to write, as given on the command line; None where nothing is asked for."""

    json: str | None
    html: Path | None
    png: Path | None

    def check(self) -> None:
        """Check before minutes of replays that their results can be written.

        Raises SettingsError naming each option, its path, and what is wrong with it.
        """
        problems = []
        places = {
            "--json": None if self.json in (None, STDOUT) else Path(str(self.json)),
            "--html": self.html,
        }
        for option, path in places.items():
            if path is not None:
                problems += _problems(option, path, folder=path.is_dir())
        if self.png is not None:
            if self.png.is_dir():
                problems += [] if os.access(self.png, os.W_OK) else [f"--png = {self.png}: not writable"]
            elif self.png.exists() and not _is_prefix(self.png):
                problems.append(f"--png = {self.png}: a file; must be a folder, or a name that ends in .png")
            else:
                problems += _problems("--png", self.png, folder=False)
        if problems:
            raise SettingsError(problems)

    def write(self, results: Sequence[Result]) -> list[Path]:
        """Write what was asked for; returns the files.

        Interrupted or failing, it leaves none: everything is written to temporary folders first, and moved
        at the end.

        Raises:
            CommandError: if something cannot be written.
        """
        from replay.report import write_html, write_png  # noqa: PLC0415

        if self.json == STDOUT:
            print(json_text(results), end="")
        workshops: list[Path] = []

        def workshop(beside: Path) -> Path:
            folder = Path(tempfile.mkdtemp(prefix=".tideserve-", dir=beside))
            workshops.append(folder)
            return folder

        option = ""
        moves: list[tuple[Path, Path]] = []
        try:
            if self.json not in (None, STDOUT):
                option, target = "--json", Path(str(self.json))
                made = workshop(target.parent) / target.name
                made.write_text(json_text(results), encoding="utf-8")
                moves.append((made, target))
            if self.html is not None:
                option = "--html"
                made = write_html(workshop(self.html.parent) / self.html.name, results)
                moves.append((made, self.html))
            if self.png is not None:
                option, folder = "--png", self.png.parent if _is_prefix(self.png) else self.png
                place = workshop(self.png.parent)
                pictures = write_png(place / self.png.name if _is_prefix(self.png) else place, results)
                moves += [(picture, folder / picture.name) for picture in pictures]
            for made, target in moves:
                option = str(target)
                target.parent.mkdir(exist_ok=True)
                os.replace(made, target)
        except OSError as error:
            raise CommandError(f"{option}: could not be written: {error.strerror}") from None
        finally:
            for folder in workshops:
                shutil.rmtree(folder, ignore_errors=True)
        return [target for _, target in moves]


def json_text(results: Sequence[Result]) -> str:
    """The JSON of one result; of several, the first one's with all documents under `results`."""
    from replay.report import document  # noqa: PLC0415

    known: dict[str, Any] = document(results[0])
    if len(results) > 1:
        known["results"] = [document(result) for result in results]
    return json.dumps(known, indent=1, allow_nan=False) + "\n"


def _is_prefix(png: Path) -> bool:
    """Whether `png` is a prefix of two file names rather than a folder."""
    return png.suffix.lower() == ".png"


def _problems(option: str, path: Path, *, folder: bool) -> list[str]:
    if folder:
        return [f"{option} = {path}: a folder; must be a file"]
    if not path.parent.is_dir():
        return [f"{option} = {path}: {path.parent} is not a folder"]
    if not os.access(path.parent, os.W_OK):
        return [f"{option} = {path}: {path.parent} is not writable"]
    return []
