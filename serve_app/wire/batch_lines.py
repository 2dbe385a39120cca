"""Lines of batches on their way from the batch runner to an ingress replica, and their answers."""

from dataclasses import dataclass


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
