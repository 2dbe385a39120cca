"""Files and batches, as the database has them and as clients see them."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Literal

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
Purpose = Literal["batch", "batch_output"]
Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
OPEN: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
"""The statuses of batches that the runner has to work on."""
DAY_S = 86_400


def new_id(kind: Literal["file", "batch"]) -> str:
    """Return an id that no client can guess. Later ids sort after earlier ones, to the millisecond."""
    return f"{kind}{'-' if kind == 'file' else '_'}{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


@dataclass(frozen=True, slots=True)
class File:
    """An uploaded input file, or a file of results."""

    id: str
    owner: str
    """The name of the API key; "" without keys."""
    purpose: Purpose
    filename: str
    bytes: int
    created_at: int
    """Unix time, as all times here."""
    expires_at: int | None = None

    @property
    def object(self) -> str:
        """The name of its object in the file store."""
        return f"files/{self.id}"

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass(frozen=True, slots=True)
class LineError:
    """A fault of a batch's input file. `line` counts from 1; None for a fault of the whole file."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch. The fields are the columns of its row."""

    id: str
    owner: str
    endpoint: Endpoint
    input_file_id: str
    completion_window: str
    status: Status
    created_at: int
    expires_at: int
    model: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    output_expires_after: int | None = None
    """Seconds from the creation of the result files to their expiry."""
    errors: list[dict[str, Any]] | None = None
    """The faults of the input file, or why the batch fails, as `LineError` has them."""
    metadata: dict[str, str] | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def left(self) -> int:
        """The lines without an answer."""
        return self.total - self.completed - self.failed

    def document(self) -> dict[str, Any]:
        times = ("in_progress", "expires", "finalizing", "completed", "failed", "expired", "cancelling")
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": None if self.errors is None else {"object": "list", "data": self.errors},
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            **{f"{name}_at": getattr(self, f"{name}_at") for name in (*times, "cancelled")},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": {
                "input_tokens": self.input_tokens,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
                "output_tokens": self.output_tokens,
                "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
                "total_tokens": self.input_tokens + self.output_tokens,
            },
            "metadata": self.metadata,
        }


@dataclass(frozen=True, slots=True)
class Line:
    """A valid line of an input file. Its body stays in the file."""

    line: int
    """The number in the file, from 1."""
    custom_id: str
    offset: int
    """Where the line begins in the file, in bytes."""
    length: int
    """Bytes, without the end of the line."""
    position: int = field(default=0)
    """The order of sending, from 0. Lines with a common prefix are neighbours."""
