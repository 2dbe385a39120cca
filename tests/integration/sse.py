"""Reading a stream off a bare socket, so that a test can leave it whenever it likes."""

from __future__ import annotations

import json
import re
import socket
from types import TracebackType


class RawStream:
    """One HTTP/1.1 POST whose response is read in pieces and may be left at any point."""

    def __init__(self, port: int, path: str, body: dict) -> None:
        data = json.dumps(body).encode()
        self.received = b""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=300)
        self._socket.sendall(
            b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\n" % path.encode()
            + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
        )

    def __enter__(self) -> RawStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def until(self, mark: bytes) -> bytes:
        """Read until `mark` has been received; returns everything so far."""
        while mark not in self.received:
            data = self._socket.recv(65536)
            assert data, f"the connection was cut before {mark!r}: ...{self.received[-600:]!r}"
            self.received += data
        return self.received

    def leave(self) -> None:
        """Close the connection, as a client does that has lost interest."""
        self._socket.close()


def unchunked(response: bytes) -> bytes:
    """Return the body of a whole response in chunks. An event may be in two: a proxy cuts anywhere."""
    body, rest = b"", response.partition(b"\r\n\r\n")[2]
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if not (length := int(size, 16)):
            return body
        body, rest = body + rest[:length], rest[length + 2 :]


def over_http_1_0(port: int, path: str, body: dict, *headers: str) -> tuple[str, bytes]:
    """The head, in lower case, and the body of the answer to an HTTP/1.0 POST, as nginx sends it."""
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.0",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *headers,
    ]
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        received = b""
        while not _is_whole(received) and (got := connection.recv(65536)):
            received += got
    head, _, answer = received.partition(b"\r\n\r\n")
    return head.decode().lower(), answer


def _is_whole(received: bytes) -> bool:
    """Whether an answer with a `Content-Length` is there. The server may keep its connection for 90 s."""
    head, _, answer = received.partition(b"\r\n\r\n")
    found = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return found is not None and len(answer) >= int(found[1])
