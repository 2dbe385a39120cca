"""Reading a stream off a bare socket, so that a test can leave it whenever it likes."""

from __future__ import annotations

import json
import socket
from types import TracebackType


class RawStream:
    """One HTTP/1.1 POST whose response is read in pieces and may be left at any point."""

    def __init__(self, port: int, path: str, body: dict) -> None:
        data = json.dumps(body).encode()
        self.received = b""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._socket.sendall(
            b"POST %s HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % (path.encode(), len(data))
            + data
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
