"""Read a run's document back."""

import gzip
import zlib
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeFloat, ValidationError

from loadtests.arrivals import ARRIVALS_TAGS
from loadtests.distributions import DISTRIBUTION_TAGS
from loadtests.record import Record, Run, Sample, Timekeeping
from loadtests.report.document import FORMAT, VERSION
from loadtests.scenario import Scenario
from serve_app.settings.settings_error import SettingsError, located, shown

_MOST_PROBLEMS = 20
_TAGS = ARRIVALS_TAGS | DISTRIBUTION_TAGS


class _Decision(BaseModel):
    """The field of a decision record that is needed; the others are kept unchecked."""

    model_config = ConfigDict(extra="allow", strict=True)

    at: FiniteFloat


class _Document(BaseModel):
    """The parts of a run. The verdict and the summary are computed again from them."""

    model_config = ConfigDict(extra="ignore", strict=True)

    format: Literal["tideserve-loadtest"]
    version: Literal[1]
    scenario: Scenario
    scenario_hash: str
    url: str
    began: FiniteFloat
    duration_s: NonNegativeFloat
    interrupted: str
    unmet: str
    machine: dict[str, str]
    versions: dict[str, str]
    timekeeping: Timekeeping
    requests: list[Record]
    samples: list[Sample]
    decisions: list[_Decision]


def read_run(path: str | Path) -> Run:
    """Return the run that `write_json` wrote, its times rounded to a tick.

    Raises SettingsError for a file that cannot be read, that is of another format or version, or that has
    something wrong in it, which is named with the file, the key and the value.
    """
    raw = _decoded(Path(path))
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise SettingsError([f"{path}: not a load test's document: it has no format = {FORMAT!r}"])
    if raw.get("version") != VERSION:
        raise SettingsError([f"{path}: version = {shown(raw.get('version'))}: must be {VERSION}"])
    try:
        document = _Document.model_validate(raw)
    except ValidationError as error:
        raise SettingsError(
            [f"{path}: {problem}" for _, problem in located(error, _TAGS)[:_MOST_PROBLEMS]]
        ) from None
    return Run(
        scenario=raw["scenario"],
        scenario_hash=document.scenario_hash,
        url=document.url,
        began=document.began,
        duration_s=document.duration_s,
        records=tuple(document.requests),
        samples=tuple(document.samples),
        decisions=tuple(raw["decisions"]),
        timekeeping=document.timekeeping,
        interrupted=document.interrupted,
        unmet=document.unmet,
        machine=document.machine,
        versions=document.versions,
    )


def _decoded(path: Path) -> Any:
    try:
        data = path.read_bytes()
        # By what it is, not by its name: a browser that saves a page's file may take the ending off.
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return msgspec.json.decode(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SettingsError([f"{path}: not whole: {error}"]) from None
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror or error}"]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError([f"{path}: not JSON: {error}"]) from None
