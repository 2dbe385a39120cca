"""Traces with a JSON object a line: Mooncake's, with prefix blocks, and our own request log."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from serve_app.settings.document import unique_keys
from serve_app.wire.request_line import FAILED
from traces.chunks import picked, starts_of
from traces.files import LineFile, Lines
from traces.trace import Chunk, Ints, shown
from traces.values import DISORDER_S, LATEST_UNIX_S, LONGEST_S, MOST_TOKENS, Key, requests_of

MOST_SEQUENCES = 10_000
"""The most sequences of one request, as `max_sequences_per_request` allows."""
_MOST_MODELS = 1_000
"""Names of models that are remembered for an error message."""
_MOST_ID = (1 << 63) - 1


def parsed(lines: Lines, index: int) -> dict[str, Any]:
    """A line as an object. Raises LineError if it is none."""
    text = lines.texts[index]
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise lines.error(index, f"not JSON: {error}: {shown(text)}") from None
    if not isinstance(document, dict):
        raise lines.error(index, f"must be an object, and is {shown(text)}")
    # A colon follows each key, and few lines have others: only what has more can have a key twice.
    if text.count(":") > len(document):
        try:
            json.loads(text, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            raise lines.error(index, f"{error}: {shown(text)}") from None
    return document


def _objects(lines: Lines, keys: Sequence[Key]) -> tuple[list[dict[str, Any]], list[list[object]]]:
    """The objects of `lines`, and their values by key."""
    documents = [parsed(lines, index) for index in range(len(lines.texts))]
    for key in keys:
        if not all(key.name in document for document in documents):
            at = next(index for index, document in enumerate(documents) if key.name not in document)
            raise lines.error(at, f"{key.name}: missing; the line has {shown(', '.join(documents[at]))}")
    return documents, [[document[key.name] for document in documents] for key in keys]


class MooncakeFormat:
    """Mooncake's traces: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` (512 tokens each)."""

    name = "mooncake"
    keys = (
        Key("timestamp", 0.0, LONGEST_S * 1e3, whole=False),
        Key("input_length", 1, MOST_TOKENS),
        Key("output_length", 0, MOST_TOKENS),
    )
    header_lines = 0
    block_tokens = 512
    disorder_s = DISORDER_S
    from_first = False

    def requests(self, lines: Lines) -> tuple[Chunk, Ints]:
        """See `Format`."""
        documents, columns = _objects(lines, self.keys)
        chunk, index = requests_of(lines, self.keys, tuple(columns))
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
        """What is wrong with the blocks of a prompt; empty if nothing is."""
        if not isinstance(ids, list):
            return f"hash_ids = {shown(ids)}: must be a list"
        for block in ids:
            if type(block) is not int or not 0 <= block <= _MOST_ID:
                return f"hash_ids: {shown(block)}: must be a whole number from 0 to {_MOST_ID}"
        most = -(-tokens // self.block_tokens)
        if len(ids) > most:
            return (
                f"hash_ids: {len(ids)} blocks of {self.block_tokens} tokens, and a prompt of {tokens} "
                f"has at most {most}"
            )
        return ""


class RequestLogFormat:
    """The request log that engine replicas write. A line is written when its request ends.

    A request of several sequences (`n`, or several prompts) is replayed as that many requests with even
    shares of its tokens, because they run side by side. Failed requests are left out: the ingress has sent
    them to another replica, or to none.
    """

    name = "tideserve"
    keys = (
        Key("arrived_at", 0.0, LATEST_UNIX_S, whole=False),
        Key("input_tokens", 1, MOST_TOKENS),
        Key("output_tokens", 0, MOST_TOKENS),
    )
    header_lines = 0
    block_tokens = 0
    # A line stands behind those of every request that ended before it: an hour is longer than a generation,
    # and HAProxy ends a stream after it.
    disorder_s = 3600.0
    from_first = True

    def __init__(self, model: str | None = None) -> None:
        self._model = model
        self.models: set[str] = set()
        """The models whose requests have been seen, read or not."""

    def requests(self, lines: Lines) -> tuple[Chunk, Ints]:
        """See `Format`."""
        documents, columns = _objects(lines, self.keys)
        chunk, index = requests_of(lines, self.keys, tuple(columns))
        counts = [document.get("sequences", 1) for document in documents]
        sequences = Key("sequences", 1, MOST_SEQUENCES).column(lines, counts).astype(np.int64)
        models = self._models(lines, [document.get("model", "") for document in documents])
        if self._model is not None:
            sequences *= np.array([model == self._model for model in models])
        sequences *= np.array([document.get("outcome") != FAILED for document in documents])
        if np.all(sequences == 1):
            return chunk, index
        index = np.repeat(index, sequences)
        return _side_by_side(picked(chunk, index), sequences), index

    def _models(self, lines: Lines, models: Sequence[object]) -> list[str]:
        """The model of each line; several are an error where none was chosen."""
        names: list[str] = []
        for index, model in enumerate(models):
            if not isinstance(model, str):
                raise lines.error(index, f"model = {shown(model)}: must be a string")
            names.append(model)
        if self._model is None:
            known = self.models or {names[0]}
            for index, name in enumerate(names):
                if name not in known:
                    others = ", ".join(sorted(known))
                    raise lines.error(
                        index, f"model = {shown(name)}, and lines before have {others}; name one to replay"
                    )
        if len(self.models) < _MOST_MODELS:
            self.models.update(names)
        return names

    def not_before_s(self, file: LineFile) -> float:
        """A time before which no request of a log arrived, judged by its first line."""
        lines = file.first().before(1)
        _, (times,) = _objects(lines, self.keys[:1])
        return float(self.keys[0].column(lines, times)[0]) - self.disorder_s


def _side_by_side(chunk: Chunk, sequences: Ints) -> Chunk:
    """Even shares of the tokens of requests that stand there `sequences[i]` times in a row; the first of a
    request have what is left over."""
    starts = starts_of(sequences)
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], sequences)
    of = np.repeat(sequences, sequences)

    def shares(tokens: Ints) -> Ints:
        even: Ints = np.maximum(1, tokens // of + (within < tokens % of))
        return even

    return Chunk(chunk.arrival_s, shares(chunk.input_tokens), shares(chunk.output_tokens))
