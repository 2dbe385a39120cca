"""Requests and samples as rows of a JSON document.

Times are rounded to a tick, a tenth of a millisecond: a hundredth of the shortest latency that is judged.
Fields that have their default are left out. The pieces of an answer, most of a document, are gaps in whole
ticks: the first from the intended time, each other from the piece before. The times are rounded, not the
gaps, so that errors never add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, Strict, field_validator

from loadtests.record import Outcome, Record, Sample

TICKS_PER_S = 10_000
Count = Annotated[int, Field(ge=0)]
Level = Annotated[int, Field(ge=-1)]


class RequestRow(BaseModel):
    """A `Record` as a document has it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    index: Count
    kind: str
    model: str
    at_s: FiniteFloat
    sent_s: FiniteFloat
    ended_s: FiniteFloat
    outcome: Outcome
    status: Count = 0
    attempts: Count = 1
    error: str = ""
    pieces: list[int] = []
    planned_prompt_tokens: Count = 0
    planned_output_tokens: Count = 0
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    cached_tokens: Count | None = None
    cold_wait_s: FiniteFloat = 0.0
    phases: list[Annotated[tuple[FiniteFloat, str], Strict(False)]] = []

    @field_validator("pieces")
    @classmethod
    def _in_order(cls, gaps: list[int]) -> list[int]:
        if len(gaps) > 1 and min(gaps[1:]) < 0:
            raise ValueError(f"a piece cannot come before the one before it: {min(gaps[1:])} ticks")
        return gaps


class SampleRow(BaseModel):
    """A `Sample` as a document has it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    at_s: FiniteFloat
    model: str
    wanted: Level = -1
    target: Level = -1
    ready: Level = -1
    starting: Level = -1
    pending: Level = -1
    draining: Level = -1
    held: Level = -1
    waiting: Level = -1
    running: Level = -1


_RECORD_DEFAULTS = {field.name: field.default for field in fields(Record) if field.default is not MISSING}
_SAMPLE_DEFAULTS = {field.name: field.default for field in fields(Sample) if field.default is not MISSING}
_RECORD_TIMES = ("at_s", "sent_s", "ended_s", "cold_wait_s")
_RECORD_PLAIN = tuple(
    field.name for field in fields(Record) if field.name not in (*_RECORD_TIMES, "pieces_s", "phases")
)


def rounded(seconds: float) -> float:
    """Return a time rounded to the nearest tick.

    Raises:
        ValueError: if it is not finite.
    """
    return ticks(seconds) / TICKS_PER_S


def ticks(seconds: float) -> int:
    """Return a time in whole ticks.

    Raises:
        ValueError: if it is not finite.
    """
    if not math.isfinite(seconds):
        raise ValueError(f"a time must be finite: {seconds}")
    return round(seconds * TICKS_PER_S)


def request_row(record: Record) -> dict[str, Any]:
    """Return the row of one request.

    Raises:
        ValueError: if a time is not finite.
    """
    row: dict[str, Any] = {name: getattr(record, name) for name in _RECORD_PLAIN}
    row |= {name: rounded(getattr(record, name)) for name in _RECORD_TIMES}
    row = {name: value for name, value in row.items() if value != _RECORD_DEFAULTS.get(name, MISSING)}
    if record.pieces_s:
        at = np.rint(np.asarray(record.pieces_s) * TICKS_PER_S).astype(np.int64)
        row["pieces"] = np.diff(at, prepend=ticks(record.at_s)).tolist()
    if record.phases:
        row["phases"] = [[rounded(at), phase] for at, phase in record.phases]
    return row


def record_of(row: RequestRow) -> Record:
    """Return the request of a row."""
    known = {name: getattr(row, name) for name in row.model_fields_set - {"pieces", "phases"}}
    return Record(
        **known,
        pieces_s=_times(row.at_s, row.pieces),
        phases=tuple(row.phases),
    )


def sample_row(sample: Sample) -> dict[str, Any]:
    """Return the row of one sample."""
    known = {name: getattr(sample, name) for name in ("model", *_SAMPLE_DEFAULTS)}
    shown = {name: value for name, value in known.items() if value != _SAMPLE_DEFAULTS.get(name, MISSING)}
    return {"at_s": rounded(sample.at_s), **shown}


def sample_of(row: SampleRow) -> Sample:
    """Return the sample of a row."""
    return Sample(**{name: getattr(row, name) for name in row.model_fields_set})


def _times(at_s: float, gaps: Sequence[int]) -> tuple[float, ...]:
    if not gaps:
        return ()
    return tuple(((np.cumsum(gaps) + ticks(at_s)) / TICKS_PER_S).tolist())
