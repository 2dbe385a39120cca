"""The checks of a batch's input file, and the order in which its lines are sent.

The file is read in chunks. What stays in memory of a line is its place in the file and its `custom_id`. The
codes and texts of errors are OpenAI's where they are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import xxhash

from serve_app.batch.file_store import FileStore
from serve_app.batch.records import Batch, Line, LineError
from serve_app.batch.store import BatchStore

MOST_ERRORS = 100
"""The errors of one batch. The rest of the file is not read."""
MOST_ID_CHARACTERS = 512
"""Of a `custom_id`, and of the name of a model."""
_PREFIX_BYTES = (256, 2048, 16_384)
"""Prompts with equal first bytes, so many, are sent one after another, so that they share a prefix cache."""
_BOM = b"\xef\xbb\xbf"
_NONE = msgspec.Raw(b"")


class _Request(msgspec.Struct):
    """A line. Other fields are ignored, as OpenAI does."""

    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = _NONE


class _Body(msgspec.Struct):
    """The fields of a body that the check needs. The engine checks the rest when the line is sent."""

    model: Any = None
    stream: Any = None
    messages: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    instructions: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE


_request = msgspec.json.Decoder(_Request)
_body = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check. If there are `errors`, the lines are not complete."""

    model: str
    lines: list[Line]
    """In the order of the file, with their positions in the order of sending."""
    errors: list[LineError]


def validate(store: BatchStore, files: FileStore, batch: Batch, max_line_bytes: int, now: float) -> bool:
    """Check the input file of a batch, and let the batch begin or fail.

    Called again after an interruption, it begins anew.

    Args:
        files: Has the input file.
        batch: A batch that is `validating`.
        max_line_bytes: The most bytes of one line: the bound on a request's body.
        now: Unix time.

    Returns:
        Whether the batch has begun. If not, it has failed, or is no longer `validating`.

    Raises:
        DamagedError: the input file cannot be read.
    """
    file = store.file(batch.input_file_id, batch.owner, now)
    if now >= batch.expires_at:
        message = "The completion window ended before the input file was checked."
        checked = Checked("", [], [LineError("batch_expired", message)])
    elif file is None:
        message = f"The file {batch.input_file_id} has been deleted."
        checked = Checked("", [], [LineError("invalid_input_file", message, "input_file_id")])
    else:
        chunks = files.chunks(file.object, file.bytes)
        checked = check_lines(chunks, batch.endpoint, store.limits.max_requests, max_line_bytes)
    if checked.errors:
        store.fail(batch.id, checked.errors, now)
        return False
    return store.start(batch.id, checked.model, checked.lines, now)


def check_lines(chunks: Iterable[bytes], endpoint: str, max_requests: int, max_line_bytes: int) -> Checked:
    """Check the lines of an input file, which comes in chunks."""
    check = _Check(endpoint, max_line_bytes)
    blanks = 0
    for number, offset, length, text in split_lines(chunks, max_line_bytes):
        blanks += (blank := text is not None and not text.strip())
        if blank and blanks <= max_requests:  # such as the end of the file
            continue
        if blank or len(check.lines) >= max_requests:
            kind = "blank lines" if blank else "requests"
            message = f"The file has more than {max_requests} {kind}, which one batch may have."
            check.errors.append(LineError("too_many_requests", message, line=number))
            break
        if (error := check.line(number, offset, length, text)) is not None:
            check.errors.append(error)
            if len(check.errors) >= MOST_ERRORS:
                break
    if not check.lines and not check.errors:
        message = "The input file is empty. A batch needs at least one request."
        check.errors.append(LineError("empty_file", message))
    return Checked(check.model or "", check.ordered(), check.errors)


def split_lines(chunks: Iterable[bytes], max_line_bytes: int) -> Iterator[tuple[int, int, int, bytes | None]]:
    """Yield the number, offset, length and text of each line, without its end.

    The text of a line of more than `max_line_bytes` is None, so a line takes bounded memory.
    """
    number, offset, length = 1, 0, 0
    pieces: list[bytes] = []
    for chunk in chunks:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            length += end - start
            text = b"".join((*pieces, chunk[start:end])) if length <= max_line_bytes else None
            yield number, offset, length, text
            number, offset, length = number + 1, offset + length + 1, 0
            pieces.clear()
            start = end + 1
        length += len(chunk) - start
        if length <= max_line_bytes:
            pieces.append(chunk[start:])
        else:
            pieces.clear()
    if length:
        yield number, offset, length, b"".join(pieces) if length <= max_line_bytes else None


class _Check:
    """The state of the check of one file."""

    def __init__(self, endpoint: str, max_line_bytes: int) -> None:
        self._endpoint = endpoint
        self._max_line_bytes = max_line_bytes
        self.model: str | None = None
        self.lines: list[Line] = []
        self.errors: list[LineError] = []
        self._ids: set[str] = set()
        self._groups: list[tuple[int, ...]] = []
        self._first_with: dict[int, int] = {}
        """The first line with a prefix, by the hash of the prefix."""

    def line(self, number: int, offset: int, length: int, text: bytes | None) -> LineError | None:
        """Add a line, or return its error."""
        if text is None:
            return LineError(
                "line_too_large",
                f"This line has {length} bytes; at most {self._max_line_bytes} are accepted "
                "(http.max_body_bytes).",
                line=number,
            )
        request = _decode(text, number)
        if isinstance(request, LineError):
            return request
        error = self._check_envelope(request)
        if error is None:
            body = _decode_body(request.body)
            error = body if isinstance(body, LineError) else self._check_body(body)
        if error is not None:
            return replace(error, line=number)
        assert isinstance(body, _Body)
        self._ids.add(request.custom_id)
        self.lines.append(Line(number, request.custom_id, offset, length))
        self._groups.append(self._group(body))
        return None

    def ordered(self) -> list[Line]:
        """Return the lines with their positions: by common prefix, then as in the file."""
        order = sorted(range(len(self.lines)), key=lambda index: (self._groups[index], index))
        position = {index: place for place, index in enumerate(order)}
        return [replace(line, position=position[index]) for index, line in enumerate(self.lines)]

    def _check_envelope(self, request: _Request) -> LineError | None:
        for name in ("custom_id", "method", "url"):
            if getattr(request, name) is None:
                return _missing(name)
        name = request.custom_id
        if not isinstance(name, str) or not 1 <= len(name) <= MOST_ID_CHARACTERS or "\0" in name:
            return LineError(
                "invalid_custom_id",
                f"custom_id must be a text of 1 to {MOST_ID_CHARACTERS} characters without NUL.",
                "custom_id",
            )
        if name in self._ids:
            return LineError(
                "duplicate_custom_id",
                f"The custom_id {name!r} is a duplicate of another request. It must be unique in a batch.",
                "custom_id",
            )
        if request.method != "POST":
            return LineError("invalid_method", "The method must be 'POST'.", "method")
        if request.url != self._endpoint:
            return LineError(
                "invalid_url",
                f"The url of this request must be the endpoint of the batch, {self._endpoint!r}.",
                "url",
            )
        return None

    def _check_body(self, body: _Body) -> LineError | None:
        if body.model is None:
            return _missing("body.model")
        if (
            not isinstance(body.model, str)
            or not 1 <= len(body.model) <= MOST_ID_CHARACTERS
            or "\0" in body.model
        ):
            return LineError(
                "invalid_value",
                f"The model must be a text of 1 to {MOST_ID_CHARACTERS} characters without NUL.",
                "body.model",
            )
        if self.model is not None and body.model != self.model:
            return LineError(
                "mismatched_model",
                f"The model {body.model[:200]!r} is not that of the first request, {self.model[:200]!r}. "
                "A batch has one model.",
                "body.model",
            )
        if body.stream is True:  # the ingress refuses the lines that ask otherwise
            return LineError("invalid_value", "A request of a batch cannot be a stream.", "body.stream")
        self.model = body.model
        return None

    def _group(self, body: _Body) -> tuple[int, ...]:
        """Return the first lines with the prefixes of this prompt, the shortest prefix first."""
        prompt = b"".join((body.messages, body.prompt, body.instructions, body.input))
        index = len(self.lines) - 1
        hashes = (xxhash.xxh3_64_intdigest(prompt[:length]) for length in _PREFIX_BYTES)
        return tuple(self._first_with.setdefault(each, index) for each in hashes)


def _decode(text: bytes, number: int) -> _Request | LineError:
    reason = "This line is not parseable as valid JSON"
    try:
        text.decode()
        if text.startswith(_BOM) and number == 1:
            return LineError("invalid_json_line", f"{reason}: it begins with a byte order mark.", line=number)
        return _request.decode(text)
    except UnicodeDecodeError as error:
        return LineError("invalid_json_line", f"{reason}: not UTF-8 at byte {error.start}.", line=number)
    except msgspec.ValidationError:
        return LineError("invalid_request", "This line is not a JSON object.", line=number)
    except (msgspec.DecodeError, RecursionError) as error:
        return LineError("invalid_json_line", f"{reason}: {error}.", line=number)


def _decode_body(text: msgspec.Raw) -> _Body | LineError:
    if not bytes(text):
        return _missing("body")
    try:
        return _body.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return LineError("invalid_request", "The body is not a JSON object.", "body")


def _missing(param: str) -> LineError:
    return LineError("missing_required_parameter", f"{param} is required.", param)
