"""The formats of traces: CSV with a header, or a JSON object per line."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Protocol

import msgspec
import numpy as np

from serve_app.settings.caller import LANES
from serve_app.settings.document import unique_keys
from serve_app.settings.model_names import MOST_ADAPTERS
from serve_app.wire.request_line import FAILED
from traces.columns import Key
from traces.files import LineError, LineFile, Lines
from traces.trace import LONGEST_S, MOST_TOKENS, STANDARD, Chunk, Floats, Ints, shown, starts_of, take

LATEST_UNIX_S = 4_102_444_800.0
"""The year 2100."""
DISORDER_S = 60.0
"""Lines of a published trace may stand this much too late."""
MOST_SEQUENCES = 10_000
"""The most sequences of one request, as `max_sequences_per_request` allows."""
_MOST_MODELS = 1_000  # names that are remembered for an error message
_MOST_ID = (1 << 63) - 1


def _keys(time: str, latest: float, prompt: str, answer: str) -> tuple[Key, Key, Key]:
    return Key(time, 0.0, latest, whole=False), Key(prompt, 1, MOST_TOKENS), Key(answer, 0, MOST_TOKENS)


def _requests(
    lines: Lines, keys: Sequence[Key], columns: Sequence[Sequence[object] | Floats]
) -> tuple[Chunk, Ints]:
    """One request per line. An answer of 0 tokens becomes one of 1: its prefill made a token."""
    arrival_s, inputs, outputs = (
        key.column(lines, values) for key, values in zip(keys, columns, strict=True)
    )
    chunk = Chunk(arrival_s, inputs.astype(np.int64), np.maximum(outputs, 1).astype(np.int64))
    return chunk, np.arange(len(arrival_s))


_LANE = "lane"
_LANES: dict[object, int] = {lane: place for place, lane in enumerate(LANES)}


def _with_lanes(chunk: Chunk, lines: Lines, lanes: Sequence[object]) -> Chunk:
    """`chunk` with the lane of each of its `lines`. Raises LineError for one that does not exist."""
    places = [_LANES.get(lane) if isinstance(lane, str) else None for lane in lanes]
    if None in places:
        at = places.index(None)
        raise lines.error(at, f"{_LANE} = {shown(lanes[at])}: must be one of {', '.join(LANES)}")
    if all(place == STANDARD for place in places):
        return chunk
    return replace(chunk, lanes=np.array(places, dtype=np.int64))


class Format(Protocol):
    """Reads the lines of one format."""

    name: str
    """As `open_trace` takes it."""
    header_lines: int
    """Lines before the first request, blank ones included."""
    block_tokens: int
    """Tokens of one prefix block; 0 where requests have none."""
    disorder_s: float
    """The most seconds that a request may have arrived before one on an earlier line."""
    from_first: bool
    """Whether the trace starts with its first request, not at a time 0 of its own."""

    def requests(self, lines: Lines) -> tuple[Chunk, Ints]:
        """The requests of `lines`, at the times in the file, and for each the index of its line.

        Raises LineError for a wrong line, which need not be the first one.
        """
        ...


PLAIN, AZURE = "plain", "azure"
_CSV_KEYS = {
    PLAIN: _keys("arrival_s", LONGEST_S, "input_tokens", "output_tokens"),
    AZURE: _keys("TIMESTAMP", LATEST_UNIX_S, "ContextTokens", "GeneratedTokens"),
}


class CsvFormat:
    """A request per line. Columns are found by their names, in any order and any case; others are ignored.

    `plain` has seconds since the start of the trace, and may have the column `lane`. `azure` is how Azure
    publishes its LLM inference traces, with dates and times to the microsecond. Those of 2023 have no offset
    and are read as UTC.

    Raises:
        TraceError: if a column is not in the header, the first of the `lines`.
    """

    block_tokens = 0
    disorder_s = DISORDER_S

    def __init__(self, name: str, lines: Lines) -> None:
        self.name = name
        self._keys = _CSV_KEYS[name]
        self.from_first = name == AZURE
        self.header_lines = lines.numbers[0]
        header = _fields(lines, 0)
        names = [one.strip().lower() for one in header]
        wanted = [key.name for key in self._keys]
        missing = [name for name in wanted if name.lower() not in names]
        twice = [name for name in wanted if names.count(name.lower()) > 1]
        for problem, columns in (("no column", missing), ("two columns", twice)):
            if columns:
                has = f"the header has {shown(', '.join(header))}"
                raise lines.error(0, f"{problem} {', '.join(columns)}; {has}")
        self._places = [names.index(name.lower()) for name in wanted]
        self._lane = names.index(_LANE) if name == PLAIN and _LANE in names else None
        self._columns = dict(zip(self._places, wanted, strict=True))
        if self._lane is not None:
            self._columns[self._lane] = _LANE

    def requests(self, lines: Lines) -> tuple[Chunk, Ints]:
        if not self.from_first and self._lane is None:
            try:  # NumPy is four times as fast: 0.25 s for 290,000 requests.
                table = np.loadtxt(
                    lines.texts, delimiter=",", usecols=self._places, comments=None, quotechar='"', ndmin=2
                )
                return _requests(lines, self._keys, tuple(table.T))
            except ValueError:
                pass  # Reading field by field finds the wrong value, or finds that none is wrong.
        rows = [_fields(lines, index) for index in range(len(lines.texts))]
        try:
            times, inputs, outputs = zip(*map(itemgetter(*self._places), rows), strict=True)
            lanes = None if self._lane is None else [row[self._lane].strip() for row in rows]
        except IndexError:
            last = max(self._columns)
            at = next(index for index, row in enumerate(rows) if len(row) <= last)
            has = f"{len(rows[at])} columns, and {self._columns[last]} is column {last + 1}"
            raise lines.error(at, f"{has}: {shown(lines.texts[at])}") from None
        if self.from_first:
            times = tuple(self._unix_s(lines, index, date) for index, date in enumerate(times))
        chunk, index = _requests(lines, self._keys, (times, inputs, outputs))
        return chunk if lanes is None else _with_lanes(chunk, lines, lanes), index

    def _unix_s(self, lines: Lines, index: int, date: str) -> float:
        key = self._keys[0]
        try:
            time = datetime.fromisoformat(date.strip())
        except ValueError:
            raise lines.error(index, f"{key.name} = {shown(date)}: not a date and time") from None
        unix_s = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
        if not key.least <= unix_s <= key.most:
            raise lines.error(index, f"{key.name} = {shown(date)}: must be from 1970 to 2100")
        return unix_s


def _fields(lines: Lines, index: int) -> list[str]:
    """The fields of a line of a CSV file. Raises LineError for quotes that cannot be read."""
    text = lines.texts[index]
    if '"' not in text and "\r" not in text:
        return text.split(",")
    try:
        (fields,) = csv.reader([text], skipinitialspace=True)
    except csv.Error as error:
        raise lines.error(index, f"not a line of a CSV file: {error}: {shown(text)}") from None
    return fields


class MooncakeFormat:
    """Mooncake's traces: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` (512 tokens each)."""

    name = "mooncake"
    keys = _keys("timestamp", LONGEST_S * 1e3, "input_length", "output_length")
    header_lines = 0
    block_tokens = 512
    disorder_s = DISORDER_S
    from_first = False

    def requests(self, lines: Lines) -> tuple[Chunk, Ints]:
        documents, columns = _objects(lines, self.keys)
        chunk, index = _requests(lines, self.keys, columns)
        prompts: list[list[int]] = []
        for at, (document, tokens) in enumerate(zip(documents, chunk.input_tokens.tolist(), strict=True)):
            ids = document.get("hash_ids", [])
            if fault := self._fault(ids, tokens):
                raise lines.error(at, fault)
            prompts.append(ids)
        starts = starts_of(np.array([len(ids) for ids in prompts], dtype=np.int64))
        blocks = np.array([block for ids in prompts for block in ids], dtype=np.int64)
        return Chunk(chunk.arrival_s / 1e3, chunk.input_tokens, chunk.output_tokens, starts, blocks), index

    def _fault(self, ids: object, tokens: int) -> str:
        """The fault in the blocks of a prompt; empty if there is none."""
        if not isinstance(ids, list):
            return f"hash_ids = {shown(ids)}: must be a list"
        for block in ids:
            if type(block) is not int or not 0 <= block <= _MOST_ID:
                return f"hash_ids: {shown(block)}: must be a whole number from 0 to {_MOST_ID}"
        most = -(-tokens // self.block_tokens)
        if len(ids) > most:
            blocks = f"{len(ids)} blocks of {self.block_tokens} tokens"
            return f"hash_ids: {blocks}, and a prompt of {tokens} has at most {most}"
        return ""


class RequestLogFormat:
    """The request log that engine replicas write. A line is written when its request ends.

    A request of several sequences (`n`, or several prompts) is replayed as that many requests with even
    shares of its tokens, because they run side by side. Failed requests are left out: the ingress has sent
    them to another replica, or to none.
    """

    name = "tideserve"
    keys = _keys("arrived_at", LATEST_UNIX_S, "input_tokens", "output_tokens")
    header_lines = 0
    block_tokens = 0
    # A line stands behind those of every request that ended before it. HAProxy ends a stream after an hour.
    disorder_s = 3600.0
    from_first = True

    def __init__(self, model: str | None = None) -> None:
        self._model = model
        self.models: set[str] = set()
        """The models whose requests have been seen, replayed or not."""
        self._adapters: dict[object, int] = {"": 0}
        """The numbers of adapters, in the order in which their names were seen."""

    def requests(self, lines: Lines) -> tuple[Chunk, Ints]:
        documents, columns = _objects(lines, self.keys)
        chunk, index = _requests(lines, self.keys, columns)
        counts = [document.get("sequences", 1) for document in documents]
        sequences = Key("sequences", 1, MOST_SEQUENCES).column(lines, counts).astype(np.int64)
        models = self._models(lines, [document.get("model", "") for document in documents])
        lanes = [document.get(_LANE, LANES[STANDARD]) for document in documents]
        chunk = self._with_adapters(_with_lanes(chunk, lines, lanes), lines, documents)
        if self._model is not None:
            sequences *= np.array([model == self._model for model in models])
        sequences *= np.array([document.get("outcome") != FAILED for document in documents])
        if np.all(sequences == 1):
            return chunk, index
        index = np.repeat(index, sequences)
        return _share_tokens(take(chunk, index), sequences), index

    def _models(self, lines: Lines, models: Sequence[object]) -> list[str]:
        """The model of each line; several are an error where none was chosen."""
        names: list[str] = []
        for index, model in enumerate(models):
            if not isinstance(model, str):
                raise lines.error(index, f"model = {shown(model)}: must be a string")
            names.append(model)
        known = self.models or set(names[:1])
        for index, name in enumerate(names):
            if self._model is None and name not in known:
                others = ", ".join(sorted(known))
                raise lines.error(
                    index, f"model = {shown(name)}, and lines before have {others}; name one to replay"
                )
        if len(self.models) < _MOST_MODELS:
            self.models.update(names)
        return names

    def _with_adapters(self, chunk: Chunk, lines: Lines, documents: Sequence[dict[str, Any]]) -> Chunk:
        names = [document.get("adapter", "") for document in documents]
        if not any(names):
            return chunk
        for at, name in enumerate(names):
            if not isinstance(name, str):
                raise lines.error(at, f"adapter = {shown(name)}: must be a string")
            if self._adapters.setdefault(name, len(self._adapters)) > MOST_ADAPTERS:
                raise lines.error(
                    at, f"adapter = {shown(name)}: there are more than {MOST_ADAPTERS} adapters"
                )
        return replace(chunk, adapters=np.array([self._adapters[name] for name in names], dtype=np.int64))

    def not_before_s(self, file: LineFile) -> float:
        """A time before which no request of a log arrived, judged by its first line."""
        lines = file.first().before(1)
        _, (times,) = _objects(lines, self.keys[:1])
        return float(self.keys[0].column(lines, times)[0]) - self.disorder_s


def _share_tokens(chunk: Chunk, sequences: Ints) -> Chunk:
    """Even shares of the tokens of requests, each of which stands there `sequences[i]` times in a row."""
    starts = starts_of(sequences)
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], sequences)
    of = np.repeat(sequences, sequences)
    inputs, outputs = (
        np.maximum(1, tokens // of + (within < tokens % of))
        for tokens in (chunk.input_tokens, chunk.output_tokens)
    )
    return replace(chunk, input_tokens=inputs, output_tokens=outputs)


def _objects(lines: Lines, keys: Sequence[Key]) -> tuple[list[dict[str, Any]], list[list[object]]]:
    """The objects of `lines`, and their values by key."""
    documents = [_parse(lines, index) for index in range(len(lines.texts))]
    for key in keys:
        for at, document in enumerate(documents):
            if key.name not in document:
                raise lines.error(at, f"{key.name}: missing; the line has {shown(', '.join(document))}")
    return documents, [[document[key.name] for document in documents] for key in keys]


def _parse(lines: Lines, index: int) -> dict[str, Any]:
    """A line as an object. Raises LineError if it is none."""
    text = lines.texts[index]
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise lines.error(index, f"not JSON: {error}: {shown(text)}") from None
    if not isinstance(document, dict):
        raise lines.error(index, f"must be an object, and is {shown(text)}")
    # A colon follows each key, and few lines have others: only a line with more can have a key twice.
    if text.count(":") > len(document):
        try:
            json.loads(text, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            raise lines.error(index, f"{error}: {shown(text)}") from None
    return document


AUTO = "auto"
FORMATS = (AZURE, MooncakeFormat.name, PLAIN, RequestLogFormat.name)
_JSON_FORMATS = (MooncakeFormat, RequestLogFormat)


def read(lines: Lines, layout: Format) -> tuple[Chunk, Ints]:
    """As `Format.requests`; the error is that of the first wrong line."""
    try:
        return layout.requests(lines)
    except LineError as error:
        if error.index:
            read(lines.before(error.index), layout)  # raises if one of them is wrong in another way
        raise


def detect(file: LineFile, format: str, model: str | None) -> Format:  # noqa: A002 as `open_trace` calls it
    """The format of `file`, ready to read it.

    Raises TraceError if it is in none, or not in the one that was asked for.
    """
    lines = file.first()
    if format == AUTO:
        format = _of_object(lines) if lines.texts[0].startswith("{") else _of_header(lines)  # noqa: A001
    if format in _CSV_KEYS:
        return CsvFormat(format, lines)
    return MooncakeFormat() if format == MooncakeFormat.name else RequestLogFormat(model)


def _of_header(lines: Lines) -> str:
    names = {name.strip().lower() for name in _fields(lines, 0)}
    # The nearest format, so that its error names the missing column.
    known = {name: sum(key.name.lower() in names for key in keys) for name, keys in _CSV_KEYS.items()}
    best = max(known, key=lambda name: known[name])
    if not known[best]:
        raise lines.error(0, f"unknown format: {shown(lines.texts[0])}; {_known_formats()}")
    return best


def _of_object(lines: Lines) -> str:
    document = _parse(lines, 0)
    for kind in _JSON_FORMATS:
        if any(key.name in document for key in kind.keys[:2]):
            return kind.name
    raise lines.error(0, f"unknown format: an object with {shown(', '.join(document))}; {_known_formats()}")


def _known_formats() -> str:
    headers = " or ".join(",".join(key.name for key in keys) for keys in _CSV_KEYS.values())
    objects = " or ".join(", ".join(key.name for key in kind.keys) for kind in _JSON_FORMATS)
    return f"a trace begins with the header {headers}, or has objects with {objects}"
