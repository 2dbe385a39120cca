"""Bodies with a content coding: what comes out of them, and their bounds."""

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from serve_app.api.body import Content, read_body
from serve_app.api.body_memory import BodyMemory, BodyShare
from serve_app.api.errors import ApiError
from serve_app.api.request_head import takes_gzip
from tests.api.server import Server, error_of
from tests.refusal import refusal

BODY = b'{"model":"tide","prompt":"sea"}'


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def members(data: bytes) -> bytes:
    return gzip.compress(data[:5]) + gzip.compress(b"") + gzip.compress(data[5:])


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "none": ("identity, ", bytes),
    "gzip": ("GZIP", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "members": ("gzip", members),
    "deflate": ("identity, deflate", zlib.compress),
    "deflate without header": ("deflate", raw_deflate),
}


def request(coding: str, chunks: Iterable[bytes]) -> Request:
    waiting = iter(chunks)

    async def receive() -> Message:
        data = next(waiting, None)
        return {"type": "http.request", "body": data or b"", "more_body": data is not None}

    return Request({"type": "http", "headers": [(b"content-encoding", coding.encode())]}, receive)


def read(coding: str, chunks: Iterable[bytes], most: int = 1 << 30) -> bytes:
    share = BodyShare(BodyMemory(1 << 31), None)
    return asyncio.run(read_body(request(coding, chunks), most, 60.0, share))


def refused(coding: str, chunks: Iterable[bytes], most: int = 1 << 30) -> tuple[int, str | None]:
    error = refusal(read, coding, chunks, most)
    return error.status, error.code


_data = st.binary(max_size=200).flatmap(
    lambda data: st.sampled_from([data, data * 3000, bytes(65_536) + data])
)


@given(st.sampled_from(sorted(CODINGS)), _data, st.lists(st.integers(0, 1 << 20), max_size=6))
def test_content_does_not_depend_on_coding_and_cuts(name: str, data: bytes, places: Sequence[int]) -> None:
    coding, pack = CODINGS[name]
    packed = pack(data)
    edges = [0, *sorted(place % (len(packed) + 1) for place in places), len(packed)]

    assert read(coding, [packed[begin:end] for begin, end in pairwise(edges)]) == data


TAKE_GZIP = ("gzip", "br, gzip", "deflate;q=0.5,GZIP ; q=0.001", "gzip;q=1.0, br", "gzip;q=.5")
TAKE_NONE = ("", "identity", "gzip;q=0", "gzip; q=0.000, br", "br;q=1, gzip;q=0.", "xgzip")


@pytest.mark.parametrize("accepted", [*TAKE_GZIP, *TAKE_NONE])
def test_clients_may_refuse_gzip(accepted: str) -> None:
    headers = [(b"accept-encoding", accepted.encode())]

    assert takes_gzip(Request({"type": "http", "headers": headers})) is (accepted in TAKE_GZIP)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "gzip, br", "x", "gzip;q=1", "g\u0131"])
async def test_other_codings_are_refused_with_the_known_ones(server: Server, coding: str) -> None:
    headers = {"Content-Encoding": coding.encode("utf-8")}
    for path in ("/v1/completions", "/v1/messages", "/generate", "/tokenize"):
        reply = await server.http.post(path, content=BODY, headers=headers)

        assert (reply.status_code, reply.headers["accept-encoding"]) == (415, "gzip, deflate")
        assert "Content-Encoding = " in reply.json()["error"]["message"]
    assert server.chat.requests == []


@pytest.mark.parametrize("name", CODINGS)
async def test_an_engine_gets_the_decoded_body(server: Server, name: str) -> None:
    coding, pack = CODINGS[name]

    reply = await server.http.post(
        "/v1/completions", content=pack(BODY), headers={"Content-Encoding": coding}
    )

    assert reply.status_code == 200
    assert server.chat.requests[0].body == BODY


async def test_a_form_of_speech_is_decoded(server: Server) -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nRIFF\r\n'
    form += b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ntide\r\n--b--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=b", "Content-Encoding": "gzip"}

    reply = await server.http.post("/v1/audio/transcriptions", content=gzip.compress(form), headers=headers)
    plain = await server.http.post("/v1/audio/transcriptions", content=form, headers=headers)

    assert reply.status_code == 200
    assert server.chat.requests[0].body == b'{"model":"tide"}\nRIFF'
    assert (plain.status_code, error_of(plain)["code"]) == (400, "invalid_encoding")


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", b""),
        ("gzip", BODY),
        ("deflate", BODY),
        ("gzip", gzip.compress(BODY, mtime=0)[:-1]),
        ("deflate", zlib.compress(BODY)[:-1]),
        ("gzip", gzip.compress(BODY, mtime=0) + b"x"),
        ("gzip", zlib.compress(BODY)),
        ("gzip", gzip.compress(BODY, mtime=0)[:-8] + b"12345678"),
    ],
)
def test_malformed_codings_are_refused(coding: str, packed: bytes) -> None:
    assert refused(coding, [packed]) == (400, "invalid_encoding")


def test_a_bomb_is_refused_at_the_bound_in_bounded_memory() -> None:
    bomb = gzip.compress(bytes(1 << 26))  # 64 MiB in 64 KiB
    tracemalloc.start()
    try:
        found = refused("gzip", [bomb], 1 << 20)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found == (413, "body_too_large")
    assert most < 4 << 20


def test_input_without_output_is_bounded_too() -> None:
    taken = 0

    def empty_members() -> Iterable[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield gzip.compress(b"") * 100

    assert refused("gzip", empty_members(), 10_000) == (413, "body_too_large")
    assert taken == 6  # of 2,000 bytes each


async def test_others_have_their_turn_while_a_body_is_unpacked() -> None:
    packed = request("gzip", [gzip.compress(bytes(1 << 23))])
    content = Content(packed, 1 << 23, lambda: ApiError(413, "too large"), 60.0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    size = sum([len(chunk) async for chunk in content.chunks()])
    counting.cancel()

    assert size == 1 << 23
    assert turns >= 128  # one for each 64 KiB
