"""Large answers to clients that do not read them: their memory, and their place in a key's limits."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
import yaml

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.body_memory import LEAST_BYTES, BodyMemory, BodyShare
from serve_app.api.engine_client import EngineReply, Traffic
from tests.api.server import Server
from tests.api.slow_client import SlowClient, serving
from tests.api.traffic_log import TrafficLog
from tests.stub_engine import StubEngine
from tests.timing import until

MIB = 1 << 20
BODY = b'{"model":"tide","input":"sea"}'


def server_with(
    size: int, keys: ApiKeyFile | None = None, traffic: Traffic | None = None
) -> tuple[Server, BodyMemory]:
    server = Server(
        chat=StubEngine(EngineReply(200, b"x" * size)),
        api_keys=keys,
        traffic={"tide": traffic or Traffic()},
        max_body_memory_bytes=64 * MIB,
    )
    return server, server.app.state.answers


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_unread_answer_keeps_its_place_among_concurrent_requests(
    tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    run(_answers_stay_unread(tmp_path / "keys.yaml"))


async def _answers_stay_unread(file: Path) -> None:
    file.write_text(yaml.safe_dump({"keys": [{"name": "a", "key": "k", "concurrent_requests": 1}]}))
    server, memory = server_with(20 * MIB, ApiKeyFile(str(file)))

    async with serving(server.app) as port:
        clients = [SlowClient(port, "/v1/embeddings", BODY) for _ in range(20)]
        statuses = [await client.status() for client in clients]
        used, in_engine = memory.used_bytes, server.chat.left.is_set()
        answer = await clients[0].rest()
        await until(lambda: memory.used_bytes == 0)
        after = SlowClient(port, "/v1/embeddings", BODY)
        served_again = await after.status()
        after.close()
        await until(lambda: memory.used_bytes == 0)
        for client in clients:
            client.close()

    assert statuses == [200] + [429] * 19
    assert (used, in_engine) == (20 * MIB, True)  # the engine has ended the call
    assert answer.endswith(b"x" * 20 * MIB)
    assert served_again == 200
    assert not memory.by_group


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/chat/completions", "/tokenize"])
async def test_answers_beyond_the_memory_are_refused(path: str) -> None:
    server, memory = server_with(20 * MIB, traffic=(traffic := TrafficLog()))

    async with serving(server.app) as port:
        clients = [SlowClient(port, path, BODY) for _ in range(4)]
        statuses = [await client.status() for client in clients]
        refusal = await clients[1].rest()
        server.chat.answer = EngineReply(200, b"x" * LEAST_BYTES)
        small = SlowClient(port, path, BODY)
        statuses.append(await small.status())
        groups = dict(memory.by_group)
        for client in (*clients, small):
            client.close()
        await until(lambda: memory.used_bytes == 0)

    assert statuses == [200, 429, 429, 429, 200]
    outcomes = Counter(request.outcome for request in {id(r): r for r in traffic.requests}.values())
    assert outcomes["rejected"] == traffic.names.count("rejected") == 3
    assert groups == {"answers": 20 * MIB}
    assert b'"code":"body_memory_full"' in refusal
    assert b"\r\nretry-after: 5\r\n" in refusal.lower()


async def test_every_large_answer_is_counted() -> None:
    server, memory = server_with(0)
    server.observer.exposition = b"# %b\n" % (b"x" * 20 * MIB)

    async with serving(server.app) as port:
        first, second = SlowClient(port, "/metrics", method="GET"), SlowClient(port, "/metrics", method="GET")
        statuses = await first.status(), await second.status()
        used = memory.used_bytes
        first.close()
        second.close()
        await until(lambda: memory.used_bytes == 0)

    assert statuses == (200, 429)
    assert used == len(server.observer.exposition)


async def test_an_answer_larger_than_its_share_is_sent_alone() -> None:
    server, memory = server_with(50 * MIB)

    async with serving(server.app) as port:
        first, second = SlowClient(port, "/tokenize", BODY), SlowClient(port, "/tokenize", BODY)
        statuses = await first.status(), await second.status()
        used, answer = memory.used_bytes, await first.rest()
        for client in (first, second):
            client.close()

    assert (statuses, used) == ((200, 429), 32 * MIB)
    assert answer.endswith(b"\r\n\r\n" + b"x" * 50 * MIB)


async def test_waiting_bodies_keep_no_answer_from_its_client() -> None:
    server, _ = server_with(2 * LEAST_BYTES)
    bodies = server.app.state.endpoints.memory
    waiting = [BodyShare(bodies, name) for name in ("a", "b")]
    for share, size in zip(waiting, (32 * MIB, 32 * MIB - len(BODY)), strict=True):
        share.grow(size)

    async with server.http as client:
        reply = await client.post("/tokenize", content=BODY)

    assert (reply.status_code, len(reply.content)) == (200, 2 * LEAST_BYTES)
