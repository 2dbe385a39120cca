"""Traces with a JSON object a line: Mooncake's, with prefix blocks, and our own request log."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from loadtests.traces.chunks import starts_of
from loadtests.traces.csv_formats import DISORDER_S
from loadtests.traces.errors import Place, shown
from loadtests.traces.trace import Chunk, Ints
from loadtests.traces.values import (
    LATEST_UNIX_S,
    LONGEST_S,
    Row,
    blocked,
    chunk_of_columns,
    count,
    number,
)
from serve_app.wire.request_line import FAILED

MOST_SEQUENCES = 10_000
"""Of one request, as `max_sequences_per_request` allows."""
MOST_MODELS = 1_000
"""Names of models remembered for an error message."""

_INT64_MOST = (1 << 63) - 1
_Line = TypeVar("_Line")
_Whole = Annotated[int, Meta(ge=0, le=_INT64_MOST)]


def parsed(line: str, place: Place) -> dict[str, Any]:
    """A line as an object.

    Raises:
        TraceError: if it is none.
    """
    try:
        document = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise place.error(f"not JSON: {error}: {shown(line)}") from None
    if not isinstance(document, dict):
        raise place.error(f"must be an object, and is {shown(line)}")
    return document


def _given(document: dict[str, Any], key: str, place: Place) -> object:
    if key not in document:
        raise place.error(f"{key}: missing; the line has {shown(', '.join(document))}")
    return document[key]


def _objects(decoder: msgspec.json.Decoder[_Line], lines: bytes) -> list[_Line]:
    rows = decoder.decode_lines(lines)
    if len(rows) != lines.count(b"\n") + 1:
        raise ValueError("a line is blank, or an object has several lines")
    return rows


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[_Whole] = []


class MooncakeFormat:
    """Mooncake's traces: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` (512 tokens each)."""

    name = "mooncake"
    keys = ("timestamp", "input_length", "output_length")
    header_lines = 0
    block_tokens = 512
    disorder_s = DISORDER_S
    from_first = False

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_MooncakeLine)

    def block(self, lines: bytes) -> Chunk:
        """See `Format`."""
        rows = _objects(self._decoder, lines)
        times = np.array([row.timestamp for row in rows], dtype=np.float64) / 1e3
        inputs = np.array([row.input_length for row in rows], dtype=np.int64)
        outputs = np.array([row.output_length for row in rows], dtype=np.int64)
        chunk = blocked(chunk_of_columns(times, inputs, outputs, LONGEST_S), [row.hash_ids for row in rows])
        if np.any(np.diff(chunk.block_starts) > -(-inputs // self.block_tokens)):
            raise ValueError("more blocks than the prompt has")
        return chunk

    def line(self, line: str, place: Place) -> list[Row]:
        """See `Format`."""
        document = parsed(line, place)
        time_key, input_key, output_key = self.keys
        arrival_s = number(place, time_key, _given(document, time_key, place), 0.0, LONGEST_S * 1e3) / 1e3
        inputs = count(place, input_key, _given(document, input_key, place), 1)
        outputs = count(place, output_key, _given(document, output_key, place), 0)
        ids = document.get("hash_ids", [])
        if not isinstance(ids, list):
            raise place.error(f"hash_ids = {shown(ids)}: must be a list")
        for block in ids:
            if not isinstance(block, int) or isinstance(block, bool) or not 0 <= block <= _INT64_MOST:
                raise place.error(f"hash_ids: {shown(block)}: must be a whole number from 0 to {_INT64_MOST}")
        most = -(-inputs // self.block_tokens)
        if len(ids) > most:
            raise place.error(
                f"hash_ids: {len(ids)} blocks of {self.block_tokens} tokens, and a prompt of {inputs} "
                f"has at most {most}"
            )
        return [Row(arrival_s, inputs, outputs, tuple(ids))]


class _LogLine(msgspec.Struct):
    arrived_at: float
    input_tokens: int
    output_tokens: int
    sequences: Annotated[int, Meta(ge=1, le=MOST_SEQUENCES)] = 1
    model: str = ""
    outcome: str = ""


class RequestLogFormat:
    """The request log that engine replicas write. A line is written when its request ends.

    A request of several sequences (`n`, or several prompts) is replayed as that many requests with even
    shares of its tokens, because they run side by side. Failed requests are left out: the ingress has sent
    them to another replica, or to nobody.

    Args:
        model: Which model's requests to read, where there are several.
    """

    name = "tideserve"
    keys = ("arrived_at", "input_tokens", "output_tokens")
    header_lines = 0
    block_tokens = 0
    # A line stands behind those of every request that ended before it: an hour is longer than a generation,
    # and HAProxy ends a stream after it.
    disorder_s = 3600.0
    from_first = True

    def __init__(self, model: str | None = None) -> None:
        self._decoder = msgspec.json.Decoder(_LogLine)
        self._model = model
        self.models: set[str] = set()
        """The models whose requests have been seen, read or not."""

    def block(self, lines: bytes) -> Chunk:
        """See `Format`."""
        rows = _objects(self._decoder, lines)
        models = {row.model for row in rows}
        if self._model is None and len(self.models | models) > 1:
            raise ValueError("several models")
        self._note(models)
        chunk = chunk_of_columns(
            [row.arrived_at for row in rows],
            np.array([row.input_tokens for row in rows], dtype=np.int64),
            np.array([row.output_tokens for row in rows], dtype=np.int64),
            LATEST_UNIX_S,
        )
        sequences = np.array([row.sequences for row in rows], dtype=np.int64)
        if self._model is not None and models != {self._model}:
            sequences *= np.array([row.model == self._model for row in rows], dtype=np.int64)
        if any(row.outcome == FAILED for row in rows):
            sequences *= np.array([row.outcome != FAILED for row in rows], dtype=np.int64)
        return chunk if np.all(sequences == 1) else _side_by_side(chunk, sequences)

    def line(self, line: str, place: Place) -> list[Row]:
        """See `Format`."""
        document = parsed(line, place)
        _, input_key, output_key = self.keys
        arrival_s = arrived_at(document, place)
        inputs = count(place, input_key, _given(document, input_key, place), 1)
        outputs = count(place, output_key, _given(document, output_key, place), 0)
        sequences = count(place, "sequences", document.get("sequences", 1), 1, MOST_SEQUENCES)
        model = document.get("model", "")
        if not isinstance(model, str):
            raise place.error(f"model = {shown(model)}: must be a string")
        self._note({model})
        if self._model is None and len(self.models) > 1:
            others = ", ".join(sorted(self.models - {model}))
            raise place.error(f"model = {shown(model)}, and lines before have {others}; name one to replay")
        if (self._model is not None and model != self._model) or document.get("outcome") == FAILED:
            return []
        return [
            Row(arrival_s, max(1, share), answer)
            for share, answer in zip(_shares(inputs, sequences), _shares(outputs, sequences), strict=True)
        ]

    def _note(self, models: set[str]) -> None:
        if len(self.models) < MOST_MODELS:
            self.models |= models


def arrived_at(document: dict[str, Any], place: Place) -> float:
    """When the request of a line of a request log arrived, in Unix time.

    Raises:
        TraceError: if the line does not say.
    """
    key = RequestLogFormat.keys[0]
    return number(place, key, _given(document, key, place), 0.0, LATEST_UNIX_S)


def _shares(tokens: int, sequences: int) -> list[int]:
    each, more = divmod(tokens, sequences)
    return [each + (i < more) for i in range(sequences)]


def _side_by_side(chunk: Chunk, sequences: Ints) -> Chunk:
    """Each request `sequences[i]` times, with even shares of its tokens; the first have what is left over."""
    starts = starts_of(sequences)
    index = np.repeat(np.arange(len(chunk)), sequences)
    within = np.arange(starts[-1]) - starts[:-1][index]
    of = sequences[index]

    def shares(tokens: Ints) -> Ints:
        even: Ints = np.maximum(1, tokens[index] // of + (within < tokens[index] % of))
        return even

    return Chunk(chunk.arrival_s[index], shares(chunk.input_tokens), shares(chunk.output_tokens))
