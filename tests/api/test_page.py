"""The page's files, the stream of the fleet's state, and changes of knobs, over stub engines."""

import asyncio
import gzip
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.body_memory import BodyShare
from serve_app.api.engine_response import WriteNowMiddleware
from serve_app.settings.settings_error import SettingsError
from serve_app.ui import assets
from tests.api.server import Server, error_of
from tests.http_server import port_of, uvicorn_with
from tests.stub_engine import LIMIT_S, StubEngine, frames
from tests.timing import Clock, until
from tests.ui.fleet import FakeFleet, PageServer, model_state

CHANGE = {"model": "tideserve-tiny", "knobs": {"max_replicas": 7}}


def page_server(keys: ApiKeyFile | None = None, on: str = "127.0.0.1") -> PageServer:
    return PageServer(FakeFleet(), StubEngine(frames()), keys, on)


def client(server: PageServer, **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(server.app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(tmp_path: Path, clock: Clock) -> ApiKeyFile:
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n  - {name: boss, key: boss, admin: true}\n  - {name: team, key: team}\n")
    return ApiKeyFile(str(path), clock)


async def test_browsers_get_the_page_and_others_links() -> None:
    async with client(page_server()) as http:
        page = await http.get("/", headers={"Accept": "text/html,*/*"})
        links = await http.get("/")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert links.json()["links"]["ui"] == "/ui"
    assert page.text.count("<script") == 1


@pytest.mark.parametrize("prefix", ["", "/tide"])
@pytest.mark.parametrize("path", ["", "/", "//", "/ui", "/ui/"])
async def test_the_page_finds_its_files_below_a_prefix(prefix: str, path: str) -> None:
    transport = httpx.ASGITransport(page_server().app, root_path=prefix)
    headers = {"Accept": "text/html"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers, follow_redirects=True
    ) as http:
        page = await http.get(prefix + path)
        (script,) = re.findall('<script src="(.*?)"', page.text)
        assert (await http.get(page.url.join(script))).content == assets.script()


async def test_files_are_packed_for_who_can_unpack_them() -> None:
    async with client(page_server()) as http:
        plain = await http.get("/ui/page.js", headers={"Accept-Encoding": "gzip;q=0"})
        async with http.stream("GET", "/ui/page.js", headers={"Accept-Encoding": "gzip"}) as reply:
            packed = b"".join([part async for part in reply.aiter_raw()])

    assert "content-encoding" not in plain.headers
    assert plain.content == gzip.decompress(packed) == assets.script()
    assert len(packed) < 60_000


async def test_without_the_page_there_is_no_file_of_it(server: Server) -> None:
    for path in ("/", "/ui", "/ui/page.js", "/autoscaling/events"):
        assert error_of(await server.http.get(path))["code"] == "not_found"


async def test_only_the_files_need_no_key(keys: ApiKeyFile) -> None:
    async with client(page_server(keys)) as http:
        files, others = (
            ("/", "/ui", "/ui/", "/ui/page.css", "/ui/page.js"),
            ("/ui/other", "/autoscaling/events"),
        )
        found = {path: (await http.get(path)).status_code for path in (*files, *others)}

    assert found == {**dict.fromkeys(files, 200), "/ui/": 307, **dict.fromkeys(others, 401)}


@pytest.mark.parametrize(
    ("key", "status", "sender"), [("boss", 200, "API key 'boss'"), ("team", 403, None), ("none", 401, None)]
)
async def test_only_admin_keys_change_knobs(
    keys: ApiKeyFile, key: str, status: int, sender: str | None
) -> None:
    server = page_server(keys)
    async with client(server, Authorization=f"Bearer {key}") as http:
        reply = await http.post("/autoscaling/knobs", json=CHANGE)

    assert reply.status_code == status
    assert [who for _, _, who in server.fleet.set] == ([sender] if sender else [])


@pytest.mark.parametrize(("address", "status"), [("127.0.0.1", 200), ("0.0.0.0", 403)])
async def test_without_keys_only_a_loopback_server_lets_knobs_change(address: str, status: int) -> None:
    server = page_server(on=address)
    async with client(server) as http:
        reply = await http.post("/autoscaling/knobs", json=CHANGE)

    assert reply.status_code == status
    if status == 200:
        assert reply.json() == {"changes": ["tideserve-tiny.max_replicas: 7"], "in_force": True}
    else:
        assert error_of(reply)["code"] == "knobs_not_allowed"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "invalid_json"),
        (b"[]", "invalid_value"),
        (b'{"model": "tide"}', "invalid_value"),
        (b'{"model": "tide", "knobs": {}, "more": 1}', "invalid_value"),
        (b'{"model": 7, "knobs": {}}', "invalid_value"),
    ],
)
async def test_a_change_that_is_none_is_refused(body: bytes, told: str) -> None:
    async with client(page_server(), **{"Content-Type": "application/json"}) as http:
        reply = await http.post("/autoscaling/knobs", content=body)

    assert (reply.status_code, error_of(reply)["code"]) == (400, told)


async def test_a_knob_out_of_its_bounds_is_named() -> None:
    server = page_server()
    server.fleet.fails = SettingsError(["autoscaling['tide'].headroom = 11: must be at most 10"])
    async with client(server) as http:
        error = error_of(await http.post("/autoscaling/knobs", json=CHANGE))

    assert error["message"] == "autoscaling['tide'].headroom = 11: must be at most 10"


async def test_changes_share_the_memory_of_all_bodies() -> None:
    server = page_server()
    memory = server.app.state.endpoints.memory
    others = [BodyShare(memory, name) for name in ("a", "b")]
    for other in others:
        other.grow(memory.limit_bytes // 2)
    async with client(server) as http:
        refused = await http.post("/autoscaling/knobs", json=CHANGE)
        others[0].release()
        made = await http.post("/autoscaling/knobs", json=CHANGE)

    assert (refused.status_code, error_of(refused)["code"]) == (429, "body_memory_full")
    assert (made.status_code, memory.used_bytes) == (200, memory.limit_bytes // 2)


async def test_a_page_of_another_origin_changes_no_knob() -> None:
    server = page_server()
    async with client(server, Origin="http://evil.example") as http:
        assert (await http.post("/autoscaling/knobs", json=CHANGE)).status_code == 403
    async with client(server, **{"Content-Type": "text/plain"}) as http:
        assert (await http.post("/autoscaling/knobs", content=json.dumps(CHANGE))).status_code == 415
    assert server.fleet.set == []


class Listeners:
    """A server, and clients of its stream of events."""

    def __init__(self, server: PageServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session
        self.replies: list[aiohttp.ClientResponse] = []

    async def listen(self, key: str = "none", encoding: str = "gzip") -> aiohttp.ClientResponse:
        headers = {"Authorization": f"Bearer {key}", "Accept-Encoding": encoding}
        self.replies.append(await self.session.get("/autoscaling/events", headers=headers))
        return self.replies[-1]

    async def drain(self) -> None:
        self.server.draining = True
        await self.server.events.tick()
        for reply in self.replies:
            await reply.read()


async def next_event(reply: aiohttp.ClientResponse) -> dict[str, Any] | None:
    """Return the next event; None at the end of the stream."""
    async with asyncio.timeout(LIMIT_S):
        while line := await reply.content.readline():
            if line.startswith(b"data: "):
                return dict(json.loads(line[6:]))
    return None


@asynccontextmanager
async def listeners_of(server: PageServer) -> AsyncIterator[Listeners]:
    async with uvicorn_with(WriteNowMiddleware(server.app)) as running:
        base = f"http://127.0.0.1:{port_of(running)}"
        async with aiohttp.ClientSession(base, read_bufsize=1 << 20) as session:
            found = Listeners(server, session)
            try:
                yield found
            finally:
                await found.drain()


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_listener_gets_everything_and_then_what_changes(encoding: str) -> None:
    server = page_server()
    async with listeners_of(server) as listeners:
        reply = await listeners.listen(encoding=encoding)
        assert reply.headers.get("Content-Encoding", "identity") == encoding
        first = await next_event(reply)
        assert first is not None
        parts = {"models", "knobs", "policy", "samples", "decisions", "prices", "knob_schemas"}
        assert parts <= first.keys()
        assert first["may_set_knobs"] is True
        await server.events.tick()  # nothing has changed, so nothing is sent
        server.fleet.models = {**server.fleet.models, "org/embed": model_state(ready=9)}
        await server.events.tick()
        assert await next_event(reply) == {"models": server.fleet.models}


async def test_an_event_is_built_once_for_all_listeners() -> None:
    server = page_server()
    async with listeners_of(server) as listeners:
        replies = [await listeners.listen() for _ in range(20)]
        for reply in replies:
            await next_event(reply)
        before = server.fleet.asked
        server.fleet.models = {}
        await server.events.tick()
        assert [await next_event(reply) for reply in replies] == [{"models": {}}] * 20
        assert server.fleet.asked == before + 1


async def test_a_listener_that_does_not_read_is_disconnected() -> None:
    server, loop = page_server(), asyncio.get_running_loop()
    async with uvicorn_with(WriteNowMiddleware(server.app)) as running:
        with socket.create_connection(("127.0.0.1", port_of(running))) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, b"GET /autoscaling/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await loop.sock_recv(client, 15)).endswith(b"200 OK")
            async with asyncio.timeout(LIMIT_S):
                while server.fleet.watched:
                    server.fleet.models = {"reason": f"{server.fleet.asked}" * 300_000}
                    await server.events.tick()
                    await asyncio.sleep(0)


async def test_listeners_are_bounded_by_the_memory_of_answers() -> None:
    server = page_server()
    answers = server.app.state.answers
    other = BodyShare(answers, "answers")
    other.grow(answers.limit_bytes // 2 - (2 << 20))
    async with listeners_of(server) as listeners:
        statuses = [(await listeners.listen()).status for _ in range(3)]
        await listeners.drain()
        server.draining = False
        await until(lambda: answers.used_bytes == answers.limit_bytes // 2 - (2 << 20))
        statuses.append((await listeners.listen()).status)

    assert statuses == [200, 200, 429, 200]


async def test_head_of_the_stream_ends() -> None:
    async with listeners_of(page_server()) as listeners:
        async with asyncio.timeout(LIMIT_S), listeners.session.head("/autoscaling/events") as reply:
            assert (reply.status, await reply.read()) == (200, b"")
        async with asyncio.timeout(LIMIT_S), listeners.session.get("/health") as reply:
            assert reply.status == 200


async def test_the_stream_ends_with_its_key(keys: ApiKeyFile, clock: Clock, tmp_path: Path) -> None:
    server = page_server(keys)
    async with listeners_of(server) as listeners:
        boss, team = await listeners.listen("boss"), await listeners.listen("team")
        first = [await next_event(boss), await next_event(team)]
        assert [event and event["may_set_knobs"] for event in first] == [True, False]
        (tmp_path / "keys.yaml").write_text("keys:\n  - {name: boss, key: boss, admin: true}\n")
        clock.now += 1.0
        await keys.refresh()
        server.fleet.models = {}
        await server.events.tick()
        assert await next_event(team) is None
        assert await next_event(boss) == {"models": {}}
