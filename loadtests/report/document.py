"""A run as a JSON document, written and read back."""

import gzip
import math
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeFloat, ValidationError

from loadtests.drawing.json_numbers import finite
from loadtests.record import TICKS_PER_S, Record, Run, Sample, Timekeeping, ticks
from loadtests.scenario import TAGS, Scenario
from loadtests.summary import Summary
from loadtests.verdicts import Verdicts
from serve_app.settings.settings_error import SettingsError, located, shown

FORMAT = "tideserve-loadtest"
VERSION = 1
NEVER = "never"
_TIMES = ("at_s", "sent_s", "ended_s", "cold_wait_s", "next_at_s")
_COMPRESSION = 5  # on gaps of tokens level 9 takes four times as long for 2 % less
_MOST_PROBLEMS = 20


def run_document(run: Run, summary: Summary, verdicts: Verdicts) -> dict[str, Any]:
    """Everything about a run, as valid JSON.

    Times are seconds since the run's start unless a name says otherwise, rounded to `tick_s`. An infinite
    latency, of a request that never got its token, is `"never"`. NaN is null.

    Raises:
        ValueError: if a time of a request or a sample is not finite.
    """
    figures = {
        field.name: plain(getattr(summary, field.name))
        for field in fields(summary)
        if field.name != "slowest"
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "scenario": finite(run.scenario),
        "scenario_hash": run.scenario_hash,
        "seed": run.scenario.get("seed"),
        "url": run.url,
        "began": run.began,
        "began_iso": iso(run.began),
        "duration_s": _round(run.duration_s),
        "interrupted": run.interrupted,
        "unmet": run.unmet,
        "machine": dict(run.machine),
        "versions": dict(run.versions),
        "timekeeping": plain(run.timekeeping),
        "verdict": {"words": verdicts.words, "exit_status": verdicts.exit_status, **plain(verdicts)},
        "summary": {
            "errors": summary.counts.errors,
            "error_rate": summary.counts.error_rate,
            "gpu_seconds": plain(summary.gpu_seconds),
            "dollars": plain(summary.dollars),
            **figures,
            "slowest": [record.index for record in summary.slowest],
        },
        "tick_s": 1 / TICKS_PER_S,
        "requests": [_request(record) for record in run.records],
        "samples": [_fields(sample) for sample in run.samples],
        "decisions": finite(run.decisions),
    }


def write_json(path: str | Path, run: Run, summary: Summary, verdicts: Verdicts) -> Path:
    """Write the document, compressed where the path ends in `.gz`; equal runs give equal bytes.

    Raises:
        OSError: if the file cannot be written.
        ValueError: if a time of a request or a sample is not finite.
    """
    target = Path(path)
    document = run_document(run, summary, verdicts)
    try:
        data = msgspec.json.encode(document) + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which a server's error may hold
        data = msgspec.json.encode(_replace_surrogates(document)) + b"\n"
    if target.suffix == ".gz":
        data = gzip.compress(data, _COMPRESSION, mtime=0)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return target


def _request(record: Record) -> dict[str, Any]:
    row = _fields(record)
    if record.pieces_s:
        at = np.rint(np.asarray(row.pop("pieces_s")) * TICKS_PER_S).astype(np.int64)
        row["pieces"] = np.diff(at, prepend=ticks(record.at_s)).tolist()
    if record.phases:
        row["phases"] = [[_round(at), phase] for at, phase in record.phases]
    return row


def _fields(one: Record | Sample) -> dict[str, Any]:
    """The fields that differ from their default, with rounded times."""
    values = {field.name: (getattr(one, field.name), field.default) for field in fields(one)}
    return {
        name: _round(value) if name in _TIMES else value
        for name, (value, default) in values.items()
        if value != default
    }


def _round(seconds: float) -> float:
    return ticks(seconds) / TICKS_PER_S


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def iso(unix: float) -> str:
    """A Unix time as ISO 8601 in UTC, to the second; empty for a year that no calendar has."""
    try:
        return datetime.fromtimestamp(unix, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""


def plain(value: Any) -> Any:
    """Dataclasses, mappings and arrays as plain data for JSON: infinity is `"never"`, and NaN null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return NEVER if value == math.inf else None
    return value


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
    """The run that `write_json` wrote, its times rounded to a tick.

    Raises SettingsError for a file that cannot be read, is of another format or version, or has a wrong
    value, which is named with the file and the key.
    """
    raw = _decode(Path(path))
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise SettingsError([f"{path}: not a load test's document: it has no format = {FORMAT!r}"])
    if raw.get("version") != VERSION:
        raise SettingsError([f"{path}: version = {shown(raw.get('version'))}: must be {VERSION}"])
    try:
        document = _Document.model_validate(raw)
    except ValidationError as error:
        problems = located(error, TAGS)[:_MOST_PROBLEMS]
        raise SettingsError([f"{path}: {problem}" for _, problem in problems]) from None
    same = ("scenario_hash", "url", "began", "duration_s", "timekeeping", "interrupted", "unmet")
    return Run(
        scenario=raw["scenario"],
        records=tuple(document.requests),
        samples=tuple(document.samples),
        decisions=tuple(raw["decisions"]),
        machine=document.machine,
        versions=document.versions,
        **{key: getattr(document, key) for key in same},
    )


def _decode(path: Path) -> Any:
    try:
        data = path.read_bytes()
        # By the content, not the name: a browser that saves a page's file may remove the ending.
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return msgspec.json.decode(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SettingsError([f"{path}: not whole: {error}"]) from None
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror or error}"]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError([f"{path}: not JSON: {error}"]) from None
