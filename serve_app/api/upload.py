"""Read a form (RFC 7578) with one file, which is passed on in chunks."""

import logging
from collections.abc import AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from serve_app.api.body import Content
from serve_app.api.errors import ApiError
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
        max_file_bytes: The most bytes of the file.
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
            raise ApiError(
                400, "file: given twice; it must be given once.", param="file", code="invalid_value"
            )
        else:
            self.filename = _safe_name(options.get(b"filename", b""))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._data.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > _MOST_FIELD_BYTES:
            message = f"{self._field[:100]}: longer than {_MOST_FIELD_BYTES} bytes."
            raise ApiError(400, message, param=self._field[:100], code="invalid_value")

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
