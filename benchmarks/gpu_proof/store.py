"""The results on disk: a file for each stage as soon as it ends, and one document of all."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

DOCUMENT = "proof.json"
_IDENTITY, _MACHINE = "identity.json", "machine.json"
State = Literal["done", "cannot", "failed"]


class RefusedError(Exception):
    """The proof cannot begin, or go on: one sentence for the user for each reason."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class CannotError(Exception):
    """A stage cannot be measured on this machine; the message says why."""


class NeedError(Exception):
    """A stage needs the figures of another one, which are still to be measured."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a stage ended."""

    stage: str
    state: State
    why: str
    """Why it could not be measured or failed; empty if it is done."""
    began: str
    """UTC, ISO 8601."""
    took_s: float
    figures: dict[str, Any]


class Store:
    """The folder of one proof: of one model, on one machine, with one set of versions.

    Raises:
        RefusedError: if the folder has the figures of another proof, or a file in it cannot be read.
    """

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        self.folder = folder
        self.identity = dict(identity)
        (folder / "stages").mkdir(parents=True, exist_ok=True)
        file = folder / _IDENTITY
        if not file.exists():
            _write(file, self.identity)
        found = _read(file)
        differences = [
            f"{name}: {found.get(name, 'none')}, now {self.identity.get(name, 'none')}"
            for name in sorted({*found, *self.identity})
            if found.get(name) != self.identity.get(name)
        ]
        if differences:
            listed = ", ".join(differences)
            raise RefusedError(f"{folder} has the figures of another proof ({listed}); give another --out")

    def outcome(self, stage: str) -> Outcome | None:
        """How a stage ended; None if it has not yet."""
        file = self._file(stage)
        if not file.exists():
            return None
        found = _read(file)
        if set(found) != {field.name for field in fields(Outcome)}:
            raise RefusedError(f"{file} is not of this version: remove it, and the stage is measured again")
        return Outcome(**found)

    def figures(self, stage: str) -> dict[str, Any]:
        """The figures of a stage that is done.

        Raises:
            NeedError: if it has not been measured yet, or failed.
            CannotError: if it cannot be measured here.
        """
        outcome = self.outcome(stage)
        if outcome is None:
            raise NeedError(f"it needs the stage {stage}, which has not been measured")
        if outcome.state == "done":
            return outcome.figures
        error = CannotError if outcome.state == "cannot" else NeedError
        raise error(f"it needs the stage {stage}, which ended with: {outcome.why}")

    def keep(self, outcome: Outcome) -> None:
        """Write how a stage ended, whole or not at all."""
        _write(self._file(outcome.stage), asdict(outcome))

    def write_machine(self, machine: Mapping[str, Any]) -> None:
        """Write the description of the machine, as this run found it."""
        _write(self.folder / _MACHINE, machine)

    def forget(self, stage: str) -> None:
        """Have a stage measured again."""
        self._file(stage).unlink(missing_ok=True)

    def write_document(self, titles: Mapping[str, str]) -> dict[str, Any]:
        """Write and return the document of the stages that have ended; `titles` are by name of stage."""
        ended = {name: self.outcome(name) for name in titles}
        document = {
            "identity": self.identity,
            "machine": _read(self.folder / _MACHINE),
            "stages": [{"title": titles[name], **asdict(one)} for name, one in ended.items() if one],
            "not measured": [name for name, one in ended.items() if one is None],
        }
        _write(self.folder / DOCUMENT, document)
        return document

    def _file(self, stage: str) -> Path:
        return self.folder / "stages" / f"{stage}.json"


def read_document(path: Path) -> dict[str, Any]:
    """Return a proof's document. Raises RefusedError if the file is none."""
    document = _read(path)
    if not {"identity", "stages"} <= set(document):
        raise RefusedError(f"{path} is not the document of a proof: it has no identity and stages")
    return document


def _read(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RefusedError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise RefusedError(f"{file} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise RefusedError(f"{file}: must be a JSON object")
    return document


def _write(file: Path, document: Mapping[str, Any]) -> None:
    """Write `document` so that a reader, at any time, finds the old file or the new one."""
    part = file.with_suffix(".part")
    with part.open("w", encoding="utf-8") as out:
        json.dump(document, out, indent=1, allow_nan=False)
        out.flush()
        os.fsync(out.fileno())
    part.replace(file)
