"""What has been measured, on disk: a file for each stage as soon as it ends, and one document of all."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from benchmarks.gpu_proof.outcome import Outcome, RefusedError

IDENTITY = "identity.json"
DOCUMENT = "proof.json"
MACHINE = "machine.json"
_FIELDS = frozenset(field.name for field in fields(Outcome))


class Store:
    """The folder of one proof: of one model, on one machine, with one set of versions.

    Raises:
        RefusedError: if the folder has the figures of another proof, or a file in it cannot be read.
    """

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        self.folder = folder
        self.identity = dict(identity)
        self._stages = folder / "stages"
        self._stages.mkdir(parents=True, exist_ok=True)
        file = folder / IDENTITY
        if file.exists():
            differences = _differences(_read(file), self.identity)
            if differences:
                told = ", ".join(differences)
                raise RefusedError(f"{folder} has the figures of another proof ({told}); give another --out")
        else:
            _write(file, self.identity)

    def outcome(self, stage: str) -> Outcome | None:
        """How a stage ended; None if it has not yet."""
        file = self._file(stage)
        if not file.exists():
            return None
        found = _read(file)
        if set(found) != _FIELDS:
            raise RefusedError(f"{file} is not of this version: remove it, and the stage is measured again")
        return Outcome(**found)

    def keep(self, outcome: Outcome) -> None:
        """Write how a stage ended, whole or not at all."""
        _write(self._file(outcome.stage), asdict(outcome))

    def write_machine(self, machine: Mapping[str, Any]) -> None:
        """Keep what the machine is, as this run found it."""
        _write(self.folder / MACHINE, machine)

    def forget(self, stage: str) -> None:
        """Have a stage measured again."""
        self._file(stage).unlink(missing_ok=True)

    def write_document(self, stages: Mapping[str, str]) -> dict[str, Any]:
        """Write and return the document of the stages that have ended; `stages` are titles by name."""
        ended = [(name, title, self.outcome(name)) for name, title in stages.items()]
        document = {
            "identity": self.identity,
            "machine": _read(self.folder / MACHINE),
            "stages": [{"title": title, **asdict(outcome)} for _, title, outcome in ended if outcome],
            "not measured": [name for name, _, outcome in ended if outcome is None],
        }
        _write(self.folder / DOCUMENT, document)
        return document

    def _file(self, stage: str) -> Path:
        return self._stages / f"{stage}.json"


def read_document(path: Path) -> dict[str, Any]:
    """Return a proof's document. Raises RefusedError if the file is none."""
    document = _read(path)
    if not {"identity", "stages"} <= set(document):
        raise RefusedError(f"{path} is not the document of a proof: it has no identity and stages")
    return document


def _differences(found: Mapping[str, Any], wanted: Mapping[str, str]) -> list[str]:
    names = sorted({*found, *wanted})
    return [
        f"{name}: {found.get(name, 'none')}, now {wanted.get(name, 'none')}"
        for name in names
        if found.get(name) != wanted.get(name)
    ]


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
    """Write `document` so that whoever reads it, at any time, finds the old file or the new one."""
    part = file.with_suffix(".part")
    with part.open("w", encoding="utf-8") as out:
        json.dump(document, out, indent=1, allow_nan=False)
        out.flush()
        os.fsync(out.fileno())
    part.replace(file)
