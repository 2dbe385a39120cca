"""Forms that come in pieces, cut anywhere: what is read does not depend on the cuts."""

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from serve_app.api.errors import ApiError
from serve_app.api.upload import MOST_ENVELOPE_BYTES, Form

BOUNDARY = b"b-"
_MOST_BYTES = 4096

# Made of the pieces of a boundary, which a parser may take for one.
_text = st.lists(st.sampled_from([b"\r", b"\n", b"-", b"--", b"b", b"\r\n--b-", b" ", b"x"])).map(b"".join)
_disposition = st.sampled_from(
    [b'name="file"; filename="a"', b'name="model"', b'name="a[]"', b'name=""', b"x"]
)
_part = st.tuples(_disposition, _text.filter(lambda text: BOUNDARY not in text))
_ends = st.sampled_from([b"--b---\r\n", b"--b---", b"--b---\r", b"--b---\r\nepilogue", b"--b-", b""])


def form_of(parts: Iterable[tuple[bytes, bytes]], end: bytes = b"--b---\r\n") -> bytes:
    return (
        b"".join(
            b"--b-\r\nContent-Disposition: form-data; %b\r\nX-Other: y\r\n\r\n%b\r\n" % part for part in parts
        )
        + end
    )


def read(
    pieces: Iterable[bytes],
) -> tuple[dict[str, str], dict[str, list[str]], str | None, bytes] | str | None:
    """Return fields, lists, name and bytes of a form that comes in `pieces`, or the code of its error."""
    waiting = [piece for piece in pieces if piece]

    async def receive() -> Message:
        piece = waiting.pop(0) if waiting else b""
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    async def read_all() -> Any:
        scope = {"type": "http", "headers": [(b"content-type", b"multipart/form-data; boundary=" + BOUNDARY)]}
        form = Form(Request(scope, receive), _MOST_BYTES, 60.0, "a.setting")
        file = b"".join([chunk async for chunk in form.chunks()])
        assert form.size == len(file)
        return form.fields, form.lists, form.filename, file

    try:
        return asyncio.run(read_all())  # type: ignore[no-any-return]
    except ApiError as error:
        return error.code


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


@given(st.lists(_part, max_size=4), _ends, st.lists(st.integers(0, 10_000), max_size=5))
def test_a_form_reads_alike_however_it_is_cut(
    parts: list[tuple[bytes, bytes]], end: bytes, places: list[int]
) -> None:
    data = form_of(parts, end)

    assert read(cut(data, places)) == read([data])


@pytest.mark.parametrize("end", [b"--b---\r\n", b"--b---", b"--b---\r\n an epilogue"])
def test_a_form_reads_alike_byte_by_byte_and_at_each_cut(end: bytes) -> None:
    parts = [(b'name="file"; filename="a"', b"\r\n--b\r\n--bx"), (b'name="model"', b"tide")]
    data = form_of(parts, end)

    expected = ({"model": "tide"}, {}, "a", b"\r\n--b\r\n--bx")
    assert read(data[at : at + 1] for at in range(len(data))) == expected
    assert all(read([data[:at], data[at:]]) == expected for at in range(len(data) + 1))


def test_an_epilogue_is_bounded() -> None:
    data = form_of([(b'name="file"; filename="a"', b"x")])

    assert read([data, b"x" * (MOST_ENVELOPE_BYTES + _MOST_BYTES)]) == "file_too_large"
