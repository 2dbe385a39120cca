"""Handing listening sockets from one supervisor to the next."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from serve_app.haproxy.sockets import Address, give, listen, listen_unix, take


def taken(path: Path, hand_over: Callable[[socket.socket], None]) -> dict[Address, socket.socket]:
    """Take what `hand_over` sends to whoever connects to `path`."""

    def predecessor() -> None:
        with listener:
            connection, _ = listener.accept()
        with connection:
            hand_over(connection)

    listener = listen_unix(str(path))
    thread = threading.Thread(target=predecessor)
    thread.start()
    try:
        return take(str(path))
    finally:
        thread.join()


@pytest.mark.parametrize("message", [b"{]", b"7", b"[7]", b'[["127.0.0.1", 1]]', b"[]"])
def test_a_broken_handover_leaves_no_descriptor_open(tmp_path: Path, message: bytes) -> None:
    with listen("127.0.0.1", 0) as one, listen("127.0.0.1", 0) as other:

        def send(connection: socket.socket) -> None:
            socket.send_fds(connection, [message], [one.fileno(), other.fileno()])

        before = len(os.listdir("/proc/self/fd"))

        found = taken(tmp_path / "s", send)

        assert found == {}
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_socket_that_was_handed_over_accepts_connections(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as one:
        address = one.getsockname()
        found = taken(tmp_path / "s", lambda connection: give(connection, {address: one}))

    with found[address]:
        socket.create_connection(address, timeout=5).close()


def test_only_the_next_supervisor_may_share_a_port() -> None:
    with listen("127.0.0.1", 0) as one:
        address = one.getsockname()
        with pytest.raises(OSError, match="Address already in use"):
            listen(*address)
        listen(*address, beside=True).close()
