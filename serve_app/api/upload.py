"""Read a form (RFC 7578) with one file, which is passed on in chunks.

A form with speech becomes one body for an engine: a line of JSON, which has the other fields, and then the
bytes of the file.
"""

import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from serve_app.api.body import Content
from serve_app.api.body_memory import BodyShare
from serve_app.api.errors import ApiError, invalid_field, missing_field
from serve_app.settings.settings_error import shown

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of each malformed form
FORM = "multipart/form-data"
_MOST_FIELD_BYTES = 4096
_MOST_PARTS = 32
MOST_ENVELOPE_BYTES = 1 << 17
"""The most bytes of a form beside its file."""
_MOST_NAME_CHARACTERS = 255


class Form:
    """A form of one request. Read `chunks` to its end before the fields and `filename`.

    Args:
        request: The request. Its body is not read yet.
        timeout_s: See `Content`.
        setting: The name of the setting that has `max_file_bytes`.

    Raises:
        ApiError: 415 if the body is not declared as a form, or has a coding that is not decoded; 413 if it is
            declared as too large.
    """

    def __init__(self, request: Request, max_file_bytes: int, timeout_s: float, setting: str) -> None:
        self.fields: dict[str, str] = {}
        """The last value of each field."""
        self.lists: dict[str, list[str]] = {}
        """All values of each field whose name ends with `[]`. `fields` does not have these."""
        self.filename: str | None = None
        """The name of the file; None until the file begins."""
        self.size = 0
        """The bytes of the file so far."""
        self._max_file_bytes = max_file_bytes
        message = f"The file is larger than {max_file_bytes} bytes ({setting})."
        # The rest of the body is not the next request.
        close = {"Connection": "close"}
        self._too_large = ApiError(413, message, param="file", code="file_too_large", headers=close)
        given = request.headers.get("content-type", "")
        kind, options = parse_options_header(given)
        boundary = options.get(b"boundary")
        if kind.lower() != FORM.encode() or not boundary:
            message = f"Content-Type = {shown(given)}: must be {FORM} with a boundary."
            raise ApiError(415, message, code="unsupported_media_type")
        self.content = Content(
            request, max_file_bytes + MOST_ENVELOPE_BYTES, lambda: self._too_large, timeout_s
        )
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._add_header_name,
                    "on_header_value": self._add_header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_data,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _malformed(str(error)) from None
        self._parts = 0
        self._complete = False
        self._data: list[bytes] = []
        """The file's bytes of the present chunk."""
        self._begin_part()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the file, until the whole form is read.

        Raises:
            ApiError: 400 for a malformed form, 413 if it is too large, others as `Content`.
        """
        async for chunk in self.content.chunks():
            # The parser ignores bytes after the closing boundary: CRLF, and an epilogue (RFC 2046, 5.1.1).
            try:
                self._parser.write(chunk)
            except FormParserError as error:
                raise _malformed(str(error)) from None
            if self._data:
                data = b"".join(self._data)
                self._data.clear()
                self.size += len(data)
                if self.size > self._max_file_bytes:
                    raise self._too_large
                yield data
        if not self._complete:
            raise _malformed("it ends too early")

    def _begin_part(self) -> None:
        self._headers: dict[bytes, bytes] = {}
        self._header_name = self._header_value = b""
        self._field: str | None = None
        """The name of the present field; None for the file."""
        self._text = b""

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._header_name.lower()] = self._header_value
        self._header_name = self._header_value = b""

    def _end_headers(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise _malformed(f"it has more than {_MOST_PARTS} fields")
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name")
        if name is None:
            raise _malformed("a field has no name")
        if name != b"file":
            self._field = name.decode(errors="replace")
        elif self.filename is not None:
            raise invalid_field("file", "given twice; it must be given once.")
        else:
            self.filename = _safe_name(options.get(b"filename", b""))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._data.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > _MOST_FIELD_BYTES:
            raise invalid_field(self._field[:100], f"longer than {_MOST_FIELD_BYTES} bytes.")

    def _end_part(self) -> None:
        if self._field is None:
            return
        text = self._text.decode(errors="replace")
        if self._field.endswith("[]"):
            self.lists.setdefault(self._field, []).append(text)
        else:
            self.fields[self._field] = text

    def _end(self) -> None:
        self._complete = True


def _malformed(reason: str) -> ApiError:
    return ApiError(400, f"The body is not a form: {reason}.", code="invalid_form")


def _safe_name(given: bytes) -> str:
    """Return a file's name without folders and unprintable characters."""
    name = given.decode(errors="replace").replace("\\", "/").rpartition("/")[2]
    return "".join(each if each.isprintable() else "_" for each in name)[:_MOST_NAME_CHARACTERS] or "file"


def speech_body(fields: dict[str, Any], file: bytes) -> bytes:
    """Return the body with these fields and this file."""
    return msgspec.json.encode(fields) + b"\n" + file


def fields_of(body: bytes) -> bytes:
    """Return the JSON of a body's fields."""
    return body[: body.index(b"\n")]


def file_of(body: bytes) -> bytes:
    """Return the file of a body."""
    return body[body.index(b"\n") + 1 :]


async def read_speech(request: Request, max_bytes: int, timeout_s: float, share: BodyShare) -> bytes:
    """Read a form with a file of speech, and return it as a body.

    Args:
        request: The request. Its body is not read yet.
        max_bytes: The most bytes of the file.
        timeout_s: See `read_body`.
        share: Takes the bytes as they come. The caller releases them.

    Raises:
        ApiError: see `Form`. 400 without a file or with an empty one, 429 if the memory for bodies is full.
    """
    form = Form(request, max_bytes, timeout_s, "http.max_body_bytes")
    share.expect(form.content.length or 0)
    share.grow(MOST_ENVELOPE_BYTES)
    chunks = []
    async for chunk in form.chunks():
        share.grow(len(chunk))
        chunks.append(chunk)
    if form.filename is None:
        raise missing_field("file")
    if not form.size:
        raise invalid_field("file", "is empty")
    return speech_body(form.fields | form.lists, b"".join(chunks))
