"""What is left of the open batches of each model: a document of the batch runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


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
    """Return the time and the content of a document.

    Raises:
        KeyError, TypeError, ValueError: it is invalid.
    """
    return float(document["at"]), {
        str(model): BatchBacklog(
            int(given["batches"]),
            int(given["lines"]),
            int(given["in_flight"]),
            int(given["body_bytes"]),
            None if given["lines_per_s"] is None else float(given["lines_per_s"]),
            tuple((int(lines), float(at)) for lines, at in given["due"]),
            int(given["late"]),
            None if given["late_s"] is None else float(given["late_s"]),
        )
        for model, given in document["models"].items()
    }
