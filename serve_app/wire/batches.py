"""Batches between processes: lines for an ingress replica, their answers, and what is left for the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch."""

    number: int
    """Its place in the input file, from 1."""
    body: bytes
    """The request's JSON body."""


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """The answer to one line: an HTTP status and a JSON body."""

    number: int
    request_id: str
    status: int
    body: bytes
    retry_after_s: float = 0.0
    """When the server expects to have room again; 0 if it does not say."""


@dataclass(frozen=True, slots=True)
class LineAnswers:
    """The answers that became ready together."""

    answers: tuple[LineAnswer, ...]
    model: str
    """The served model, which the batch may name by an alias or by an adapter; "" if there is none."""
    wanted: int
    """The lines of this model that should be in flight now."""


@dataclass(frozen=True, slots=True)
class BatchBacklog:
    """The open batches of one model."""

    batches: int = 0
    lines: int = 0
    """Lines without an answer."""
    in_flight: int = 0
    """Those of them that an ingress replica has. They count among the requests of the lane background."""
    body_bytes: int = 0
    """The estimated size of the bodies of all these lines."""
    lines_per_s: float | None = None
    """The present rate of answers; None until it is known."""
    due: tuple[tuple[int, float], ...] = ()
    """For each batch, its lines without an answer, and the end of its completion window in Unix time. The
    earliest end comes first."""
    late: int = 0
    """Batches that would miss their window at the present rate."""
    late_s: float | None = 0.0
    """By how many seconds, for the latest of them; None if no line is being answered."""


NO_BATCHES = BatchBacklog()


def backlogs_document(backlogs: Mapping[str, BatchBacklog], at: float) -> dict[str, Any]:
    """Return the document of what is left for each model, as of `at` (Unix time)."""
    return {"at": at, "models": {model: asdict(backlog) for model, backlog in backlogs.items()}}


def parse_backlogs(document: Any) -> tuple[float, dict[str, BatchBacklog]]:
    """Return the time and the content of a document. Raises KeyError, TypeError or ValueError if invalid."""
    models = msgspec.convert(document["models"], dict[str, BatchBacklog])
    return msgspec.convert(document["at"], float), models
