"""Handing listening sockets from one supervisor to the next."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from serve_app.haproxy.sockets import Predecessor, give, listen, listen_unix, take


def taken(path: Path, hand_over: Callable[[socket.socket], None]) -> Predecessor | None:
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

        assert found is None
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_socket_of_an_address_no_longer_wanted_is_closed(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as one, listen("127.0.0.1", 0) as other:
        mine, theirs = one.getsockname(), other.getsockname()
        predecessor = taken(tmp_path / "s", lambda connection: give(connection, {mine: one, theirs: other}))
    assert predecessor is not None

    predecessor.keep({mine})

    socket.create_connection(mine, timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(theirs, timeout=5)
    with predecessor.connection:
        predecessor.sockets[mine].close()
