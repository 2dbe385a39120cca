"""Forms with a file of speech, read within bounds and passed to an engine as one body.

Such a body is a line of JSON, which has the form's other fields, and then the bytes of the file.
"""

from typing import Any

import msgspec
from starlette.requests import Request

from serve_app.api.body_memory import BodyShare
from serve_app.api.errors import invalid_field, missing_field
from serve_app.api.upload import MOST_ENVELOPE_BYTES, Form


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
