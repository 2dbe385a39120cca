"""The supervisor with a real HAProxy, driven by the code with which Ray Serve drives it."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import resource
import signal
import socket
import stat
import time
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import ray.serve._private.haproxy as ray_haproxy

from serve_app import env
from serve_app.haproxy.supervisor import write_launcher
from tests.haproxy.proxy import Proxy, Replica, free_port, gone, holders_of, own_address, replica

pytestmark = pytest.mark.skipif(not env.has_haproxy(), reason="needs the ray-haproxy package")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ray_haproxy, "RAY_SERVE_HAPROXY_BINARY_PATH", str(write_launcher(tmp_path)))
    return tmp_path


def run(folder: Path, test: Coroutine[Any, Any, None]) -> None:
    """Run it, and leave no process behind whatever comes of it."""
    try:
        asyncio.run(test)
    finally:
        for pid in holders_of(folder):
            os.kill(pid, signal.SIGKILL)


def open_stream(proxy: Proxy) -> http.client.HTTPResponse:
    """A stream whose first chunk has come."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=20)
    connection.request("GET", "/stream", headers={"Connection": "close"})
    stream = connection.getresponse()
    assert stream.read(5) == b"first"
    return stream


def finish(stream: http.client.HTTPResponse) -> bytes:
    Replica.go_on.set()
    with stream:
        return stream.read()


def error_of(body: bytes) -> dict[str, Any]:
    document = json.loads(body)
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = document["error"]
    return error


def test_an_only_replica_that_ray_does_not_list_for_a_moment_goes_on_serving(folder: Path) -> None:
    """So it is while Ray hands it changed knobs."""

    async def test() -> None:
        proxy = Proxy(folder)
        await proxy.api.start()
        with replica() as port:
            await proxy.deploy(port)
            await proxy.until("/anything", 200)

            for _ in range(2):
                await proxy.deploy()
                for path in ("/anything", "/ready", "/health"):
                    assert proxy.get(path).status == 200

        await proxy.until("/anything", 503)
        await proxy.api.stop()

    asyncio.run(test())


def test_whatever_haproxy_answers_by_itself_is_an_error_that_clients_understand(folder: Path) -> None:
    async def test() -> None:
        proxy = Proxy(folder)
        await proxy.api.start()
        answer = proxy.get("/v1/models")
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert error_of(answer.body)["code"] == "not_deployed"

        with replica() as port:
            await proxy.deploy(port)
            assert (await proxy.until("/anything", 200)).body == b"from the replica"
            health = proxy.get("/health")
            assert (health.status, health.body) == (200, b'{"status":"ok"}')
            assert health.headers["x-request-id"]
            head = proxy.get("/health", method="HEAD")
            assert (head.status, head.body) == (200, b"")
            assert proxy.get("/ready").body == b"from the replica"

        lost = await proxy.until("/health", 503)
        assert (error_of(lost.body)["code"], lost.headers["retry-after"]) == ("ingress_unavailable", "1")
        ready = proxy.get("/ready")
        assert (ready.status, json.loads(ready.body)["ready"]) == (503, False)
        other = await proxy.until("/v1/models", 503)
        assert other.headers["retry-after"] == "5"
        assert error_of(other.body)["code"] == "ingress_unavailable"

        # Ray's proxy on the head node is reached: pods stay in their Service, and clients get these answers.
        with replica() as head:
            await proxy.deploy(port, fallback=head)
            await proxy.until("/-/healthz", 200)
            assert proxy.get("/v1/models").status == 503
        await proxy.until("/-/healthz", 503)

        with replica() as port:
            await proxy.deploy(port, prefix="/llm")
            assert (await proxy.until("/llm/health", 200)).body == b'{"status":"ok"}'
            unknown = proxy.get("/other")
            assert (unknown.status, error_of(unknown.body)["code"]) == (404, "not_found")
        await proxy.api.stop()

    run(folder, test())


def test_haproxy_is_back_when_it_was_killed_and_no_connection_is_refused(folder: Path) -> None:
    async def test() -> None:
        with replica() as port:
            proxy = Proxy(folder)
            await proxy.api.start()
            await proxy.deploy(port)
            await proxy.until("/", 200)
            before = proxy.haproxy
            os.kill(before, signal.SIGKILL)
            began = time.monotonic()
            # Sent while there is no HAProxy: it waits in the socket that the supervisor holds.
            assert (await asyncio.to_thread(proxy.get, "/")).status == 200
            assert time.monotonic() - began < 2
            assert proxy.haproxy != before
            await proxy.api.reload()
            assert proxy.get("/").status == 200
            await proxy.api.stop()

    run(folder, test())


def test_a_stopped_haproxy_goes_on_with_its_streams(folder: Path) -> None:
    async def test() -> None:
        with replica() as port:
            proxy = Proxy(folder)
            await proxy.api.start()
            await proxy.deploy(port)
            stream = open_stream(proxy)
            before = proxy.haproxy
            os.kill(before, signal.SIGSTOP)
            assert (await asyncio.to_thread(proxy.get, "/")).status == 200
            assert await asyncio.to_thread(finish, stream) == b"last"
            assert proxy.haproxy == before
            await proxy.api.stop()

    run(folder, test())


def test_a_reload_hands_the_port_on_and_lets_the_streams_end(folder: Path) -> None:
    async def test() -> None:
        with replica() as port:
            proxy = Proxy(folder)
            await proxy.api.start()
            await proxy.deploy(port)
            stream = open_stream(proxy)
            old = (proxy.front, proxy.keeper, proxy.haproxy)
            asking = asyncio.to_thread(lambda: [proxy.get().status for _ in range(100)])
            answers, _ = await asyncio.gather(asking, proxy.api.reload())
            assert answers == [200] * 100
            assert proxy.front != old[0]
            assert proxy.api.has_alive_old_procs()
            assert await asyncio.to_thread(finish, stream) == b"last"
            await gone(*old)
            assert not (proxy.node / f"{old[0]}.cfg").exists()
            await proxy.api.stop()

    run(folder, test())


@pytest.mark.parametrize("who", ["front", "keeper"])
def test_either_process_of_the_supervisor_may_be_killed(folder: Path, who: str) -> None:
    """Killed, the front makes Ray start another manager, which knows no routes until it is told them."""

    async def test() -> None:
        with replica() as port:
            proxy = Proxy(folder)
            await proxy.api.start()
            await proxy.deploy(port)
            stream = open_stream(proxy)
            old = {"front": proxy.front, "keeper": proxy.keeper, "haproxy": proxy.haproxy}
            os.kill(old[who], signal.SIGKILL)
            if who == "front":
                proxy = proxy.next_manager()
                await proxy.api.start()
            assert (await asyncio.to_thread(proxy.get, "/")).status == 200
            # A front that is killed leaves its keeper, which hands over: neither is killed for its port.
            await gone(old["front"] if who == "front" else old["keeper"])
            assert await asyncio.to_thread(finish, stream) == b"last"
            await gone(old["haproxy"])
            assert proxy.get("/").status == 200
            await proxy.api.stop()

    run(folder, test())


def test_a_supervisor_that_hangs_makes_room_and_its_streams_end(folder: Path) -> None:
    async def test() -> None:
        with replica() as port:
            proxy = Proxy(folder)
            await proxy.api.start()
            await proxy.deploy(port)
            stream = open_stream(proxy)
            old = (proxy.front, proxy.keeper)
            for pid in old:
                os.kill(pid, signal.SIGSTOP)
            proxy = proxy.next_manager()
            await proxy.api.start()
            assert proxy.get("/").status == 200
            assert await asyncio.to_thread(finish, stream) == b"last"
            await proxy.api.stop()

    run(folder, test())


def test_nothing_is_left_when_ray_ends_what_it_started(folder: Path) -> None:
    async def test() -> None:
        with replica() as port:
            proxy = Proxy(folder)
            await proxy.api.start()
            await proxy.deploy(port)
            processes = (proxy.front, proxy.keeper, proxy.haproxy)
            await proxy.api.stop()
            await gone(*processes)
            assert holders_of(folder) == []
            with socket.create_server(("127.0.0.1", proxy.port)):
                pass

    run(folder, test())


def test_sockets_are_for_their_owner_and_pages_for_this_machine(folder: Path) -> None:
    async def test() -> None:
        proxy = Proxy(folder, host="0.0.0.0")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as metrics:  # which Ray opens before HAProxy
            metrics.bind(str(proxy.node / "metrics.sock"))
            await proxy.api.start()
            assert stat.S_IMODE(proxy.node.stat().st_mode) == 0o700
            sockets = [path for path in proxy.node.iterdir() if stat.S_ISSOCK(path.stat().st_mode)]
            assert {path.name for path in sockets} > {"admin.sock", "metrics.sock", "handover.sock"}
            assert {stat.S_IMODE(path.stat().st_mode) for path in sockets} == {0o600}
        address = own_address()
        for port in (proxy.metrics_port, proxy.stats_port):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            if address is not None:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((address, port), timeout=5)
        await proxy.api.stop()

    run(folder, test())


def test_the_frontend_listens_where_it_is_told(folder: Path) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback ones")

    async def test() -> None:
        proxy = Proxy(folder, host="127.0.0.1")
        await proxy.api.start()
        assert proxy.get("/").status == 503
        with pytest.raises(ConnectionRefusedError):
            proxy.get("/", host=address)
        await proxy.api.stop()

    run(folder, test())


def read_to_the_end(connection: socket.socket) -> bytes:
    answer = b""
    while chunk := connection.recv(65536):
        answer += chunk
    return answer


def test_headers_and_bodies_that_never_end_are_cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.HEADER_TIMEOUT_S, "1")

    async def test() -> None:
        with replica() as port:
            proxy = Proxy(folder)
            await proxy.api.start()
            await proxy.deploy(port)
            head = b"POST / HTTP/1.1\r\nHost: a\r\n"
            for sent in (head, head + b"Content-Length: 9\r\n\r\n{"):
                with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as slow:
                    slow.sendall(sent)
                    answer = await asyncio.to_thread(read_to_the_end, slow)
                assert answer.startswith(b"HTTP/1.1 408 ")
            assert error_of(answer.partition(b"\r\n\r\n")[2])["code"] == "request_timeout"
            await proxy.api.stop()

    run(folder, test())


def test_one_address_has_no_more_connections_than_its_share(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback ones")
    monkeypatch.setenv(env.CONNECTIONS_PER_ADDRESS, "3")

    def ask(_: int) -> socket.socket | None:
        """A connection that was answered; HAProxy resets one too many as it comes."""
        with suppress(ConnectionError):
            connection = socket.create_connection((address, proxy_port), timeout=5)
            with suppress(ConnectionError):
                connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                if connection.recv(12) == b"HTTP/1.1 503":
                    return connection
            connection.close()
        return None

    proxy_port = free_port()

    async def test() -> None:
        proxy = Proxy(folder, host="0.0.0.0", port=proxy_port)
        await proxy.api.start()
        mine = [connection for connection in map(ask, range(5)) if connection is not None]
        with ExitStack() as stack:
            for connection in mine:
                stack.enter_context(connection)
            assert len(mine) == 3
            assert proxy.get("/").status == 503  # from 127.0.0.1, which has no share
        await proxy.api.stop()

    run(folder, test())


def test_more_connections_than_files_may_be_open_are_not_promised(folder: Path) -> None:
    async def test() -> None:
        proxy = Proxy(folder)
        proxy.api.cfg.maxconn = 10_000_000
        await proxy.api.start()
        limit = re.search(r"^Maxconn: (\d+)$", proxy.show("info"), re.MULTILINE)
        assert limit is not None
        assert 2.5 * int(limit[1]) < resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        await proxy.api.stop()

    run(folder, test())


def test_a_port_that_somebody_else_has_is_named(folder: Path) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            proxy = Proxy(folder)
            proxy.api.cfg.http_options.port = other.getsockname()[1]
            with pytest.raises(
                RuntimeError, match=f"127.0.0.1 port {other.getsockname()[1]}: Address already"
            ):
                await proxy.api.start()

    run(folder, test())


def test_a_limit_out_of_bounds_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.HEADER_TIMEOUT_S, "0")

    async def test() -> None:
        with pytest.raises(
            RuntimeError, match="TIDESERVE_HEADER_TIMEOUT_S = '0': must be a whole number from 1"
        ):
            await Proxy(folder).api.start()

    run(folder, test())


def test_a_configuration_that_haproxy_refuses_leaves_the_last_one_in_force(folder: Path) -> None:
    async def test() -> None:
        with replica() as port:
            proxy = Proxy(folder)
            await proxy.api.start()
            await proxy.deploy(port)
            await proxy.until("/", 200)
            front = proxy.front
            monkey = ray_haproxy.RAY_SERVE_HAPROXY_BALANCE_ALGORITHM
            proxy.api.cfg.balance_algorithm = "by-guess"
            with pytest.raises(RuntimeError, match="balance only supports"):
                await proxy.api.reload()
            assert proxy.get("/").status == 200
            assert proxy.front == front
            proxy.api.cfg.balance_algorithm = monkey
            await proxy.api.reload()
            assert proxy.get("/").status == 200
            await proxy.api.stop()

    run(folder, test())
