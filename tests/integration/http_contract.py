"""Requests in the forms that HTTP allows, byte by byte, which every proxy must pass on alike."""

import json
import re
import socket
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAA")
JSON = "Content-Type: application/json"
CHUNKED = "Transfer-Encoding: chunked"


@dataclass(frozen=True, slots=True)
class Case:
    """A request to `/v1/completions`, and the status and the error code of its answer."""

    name: str
    headers: tuple[str, ...]
    body: bytes
    """As on the wire, with `$MODEL` for the model's name."""
    status: int = 200
    code: str | None = None
    line: str = "POST /v1/completions HTTP/1.1"
    pieces: int = 1
    """The number of writes."""


def chunks(body: bytes, size: int, trailer: bytes = b"") -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n" + trailer + b"\r\n"


def sized(body: bytes, *more: str) -> tuple[str, ...]:
    return (JSON, f"Content-Length: {len(body)}", *more)


def cases(model: str) -> list[Case]:
    good = json.dumps({"model": model, "prompt": "The sea", "max_tokens": 3}).encode()
    gzip = zlib.compressobj(wbits=31)
    packed = gzip.compress(good) + gzip.flush()
    form = ("Content-Type: application/x-www-form-urlencoded", *sized(good)[1:])
    marked = b"\xef\xbb\xbf" + good
    big = b'{"model":"a","prompt":"' + b"a" * (9 << 20) + b'"}'
    return [
        Case("sized", sized(good), good),
        Case("in two pieces", sized(good), good, pieces=2),
        Case("byte by byte", sized(good), good, pieces=len(good)),
        Case("one chunk", (JSON, CHUNKED), chunks(good, 1000)),
        Case("small chunks", (JSON, CHUNKED), chunks(good, 3)),
        Case("a trailer", (JSON, CHUNKED, "Trailer: X-A"), chunks(good, 9, b"X-A: 1\r\n")),
        Case("100-continue", sized(good, "Expect: 100-continue"), good),
        Case("h2c, sized", sized(good, *H2C), good),
        Case("h2c, in two pieces", sized(good, *H2C), good, pieces=2),
        Case("h2c, chunked", (JSON, CHUNKED, *H2C), chunks(good, 3)),
        Case("another upgrade", sized(good, "Connection: upgrade", "Upgrade: tide/1"), good),
        Case("a closing client", sized(good, "Connection: close"), good),
        Case("a query", sized(good), good, line="POST /v1/completions?a=b%20c HTTP/1.1"),
        Case("a slash at the end", sized(good), good, line="POST /v1/completions/ HTTP/1.1"),
        Case("an absolute URL", sized(good), good, line="POST http://127.0.0.1/v1/completions HTTP/1.1"),
        Case("HTTP/1.0", sized(good), good, line="POST /v1/completions HTTP/1.0"),
        Case("no content type", sized(good)[1:], good, 415, "unsupported_media_type"),
        Case("a charset", (f"{JSON}; charset=utf-8", *sized(good)[1:]), good),
        Case("curl's own content type", form, good, 415, "unsupported_media_type"),
        Case("an empty body", sized(b""), b"", 400, "invalid_json"),
        Case("no body", (JSON,), b"", 400, "invalid_json"),
        Case("no JSON", sized(b"{"), b"{", 400, "invalid_json"),
        Case("a byte order mark", sized(marked), marked, 400, "invalid_json"),
        Case("gzip", sized(packed, "Content-Encoding: gzip"), packed),
        Case("gzip, chunked", (JSON, CHUNKED, "Content-Encoding: gzip"), chunks(packed, 3)),
        Case("gzip of nothing", sized(good, "Content-Encoding: gzip"), good, 400, "invalid_encoding"),
        Case("brotli", sized(good, "Content-Encoding: br"), good, 415, "unsupported_encoding"),
        Case("too large", sized(big), big, 413, "body_too_large"),
        Case("too large, chunked", (JSON, CHUNKED), chunks(big, 1 << 16), 413, "body_too_large"),
    ]


def send(port: int, case: Case) -> tuple[int, dict[str, Any]]:
    """The status of the answer, and its JSON."""
    head = "\r\n".join([case.line, "Host: 127.0.0.1", *case.headers, "", ""]).encode()
    size = -(-len(case.body) // case.pieces)
    pieces = [case.body[start : start + size] for start in range(0, len(case.body), size)] if size else [b""]
    writes = [head, *pieces] if case.pieces > 1 else [head + pieces[0]]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):  # a server may refuse a body before it has read all of it
            for data in writes:
                connection.sendall(data)
        return _answer(connection)


def _answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    received = b""
    while True:
        received = received.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        head, found, body = received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if found and length is not None and len(body) >= int(length[1]):
            break
        got = connection.recv(65536)
        if not got:
            break
        received += got
    return int(head.split()[1]), json.loads(body)
