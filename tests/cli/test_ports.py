from __future__ import annotations

import socket

from serve_app.cli.ports import free_port, port_taken


def test_a_port_somebody_listens_on_is_taken_and_a_free_one_is_not() -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        assert port_taken(port)
    assert not port_taken(port)


def test_a_free_port_can_be_listened_on() -> None:
    with socket.create_server(("", free_port())):
        pass
