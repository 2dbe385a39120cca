"""The memory of all bodies: its shares by model, by key and by lane."""

import asyncio
import gc
from pathlib import Path

import pytest
from httpx import Response
from hypothesis import given
from hypothesis import strategies as st

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.body_memory import BodyMemory, BodyShare
from serve_app.api.errors import ApiError
from tests.api.server import Server, error_of
from tests.refusal import refusal
from tests.stub_engine import LIMIT_S, MuteEngine, StubEngine, stalled


def taken(memory: BodyMemory, client: str | None, model: str, size: int) -> BodyShare:
    """The share of a request whose body has been read."""
    share = BodyShare(memory, client)
    share.grow(size)
    share.belongs_to(model)
    return share


def flood(memory: BodyMemory, client: str | None, model: str, size: int = 1) -> list[BodyShare]:
    """As many requests as are let in."""
    shares = []
    while True:
        try:
            shares.append(taken(memory, client, model, size))
        except ApiError:
            return shares


def test_one_model_or_key_gets_half_the_memory() -> None:
    memory = BodyMemory(1200)
    of_key = [flood(memory, "key 1", model) for model in ("a", "b", "c")]

    assert sum(map(len, of_key)) == 600
    rest = flood(memory, None, "d")
    assert len(rest) == 600
    with pytest.raises(ApiError, match="1200 bytes of bodies in memory, 0 of them of key 2"):
        taken(memory, "key 2", "e", 1)


def test_background_requests_leave_others_room_within_a_model() -> None:
    memory = BodyMemory(1200)
    background = [BodyShare(memory, None) for _ in range(300)]
    for share in background:
        share.grow(1)
        share.belongs_to("tide", background=True)
    one_more = BodyShare(memory, None)
    one_more.grow(1)

    with pytest.raises(ApiError, match=r"300 of them of requests of the lane background, .* a quarter"):
        one_more.belongs_to("tide", background=True)

    assert len(flood(memory, None, "tide")) == 300


def test_bodies_that_are_read_count_as_they_come() -> None:
    memory = BodyMemory(1000)
    reading = [BodyShare(memory, None) for _ in range(5)]
    for share in reading:
        share.grow(100)

    error = refusal(BodyShare(memory, None).grow, 1)
    assert memory.used_bytes == 500
    assert error.status == 429
    assert error.code == "body_memory_full"


def test_error_names_the_bound_and_has_retry_after() -> None:
    memory = BodyMemory(1000)
    kept = taken(memory, None, "tide", 450)

    error = refusal(taken, memory, None, "tide", 100)
    assert "450 of them of model 'tide'" in error.message
    assert "max_body_memory_bytes = 1000" in error.message
    assert error.headers == {"Retry-After": "5", "Connection": "close"}
    kept.release()


@given(
    st.integers(1, 2000), st.lists(st.integers(1, 1000), min_size=1, max_size=5), st.booleans(), st.booleans()
)
def test_only_a_body_that_never_fits_is_413(
    used: int, chunks: list[int], background: bool, declared: bool
) -> None:
    statuses, refusals = [], []
    for others in (0, min(used, 1000)):
        memory = BodyMemory(2000)
        other = BodyShare(memory, "other")
        other.grow(others)
        share = BodyShare(memory, "key")
        try:
            if declared:
                share.expect(sum(chunks))
            for chunk in chunks:
                share.grow(chunk)
            share.belongs_to("tide", background=background)
            statuses.append(200)
        except ApiError as error:
            statuses.append(error.status)
            refusals.append(error)

    assert all(("Retry-After" in error.headers) == (error.status == 429) for error in refusals)
    fits = sum(chunks) <= (500 if background else 1000)
    assert statuses[0] == (200 if fits else 413)
    assert (statuses[1] == 413) <= (statuses[0] == 413)


def test_what_is_released_or_forgotten_is_free_again_once() -> None:
    memory = BodyMemory(1000)
    share = taken(memory, "key", "a", 100)
    share.release()
    share.release()
    taken(memory, "key", "a", 100)  # dropped, as a response that is never sent

    assert memory.used_bytes == 0
    assert memory.by_group == {}


def test_release_bears_that_the_collector_drops_another_share() -> None:
    memory = BodyMemory(1000)
    thresholds = gc.get_threshold()
    try:
        for allocations in range(50):
            share, dropped = taken(memory, "key", "a", 100), taken(memory, "key", "a", 100)
            dropped.release()
            ring: list[object] = [dropped]
            ring.append(ring)
            del dropped, ring
            gc.set_threshold(gc.get_count()[0] + allocations)  # then the collector drops the second share
            share.release()
            gc.set_threshold(*thresholds)
            assert (memory.used_bytes, memory.by_group) == (0, {})
    finally:
        gc.set_threshold(*thresholds)


def held(server: Server, path: str, body: bytes, **headers: str) -> asyncio.Task[object]:
    return asyncio.create_task(server.http.post(path, content=body, headers=headers))


async def until_arrived(engine: StubEngine, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(engine.requests) < count:
            await asyncio.sleep(0)


def padded(model: str, size: int) -> bytes:
    return b'{"model":"%s","pad":"%s"}' % (model.encode(), b"x" * size)


async def test_flood_of_one_model_or_key_leaves_another_served(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("first-key-0123456789abcdef\nsecond-key-0123456789abcdef\n")
    server = Server(
        chat=(chat := MuteEngine()), api_keys=ApiKeyFile(str(tmp_path / "keys")), max_body_memory_bytes=20_000
    )
    first, second = ({"Authorization": f"Bearer {name}-key-0123456789abcdef"} for name in ("first", "second"))
    waiting = [held(server, "/v1/chat/completions", padded("tide", 3000), **first) for _ in range(3)]
    await until_arrived(chat, 3)

    async def embed(key: dict[str, str], size: int = 3000) -> Response:
        return await server.http.post("/v1/embeddings", content=padded("org/embed", size), headers=key)

    of_key, served = await embed(first), await embed(second)
    of_model = await server.http.post("/v1/chat/completions", content=padded("tide", 3000), headers=second)

    for refused, of in ((of_key, "of API key "), (of_model, "of model 'tide'")):
        assert (refused.status_code, error_of(refused)["code"]) == (429, "body_memory_full")
        assert of in error_of(refused)["message"]
        assert refused.headers["retry-after"] == "5"
    assert served.status_code == 200
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert (await embed(first, 4000)).status_code == 200


async def test_an_answer_that_streams_has_given_its_body_back() -> None:
    server = Server(chat=StubEngine(stalled(b"data: a\n\n")), max_body_memory_bytes=9000)
    streams = []
    for _ in range(5):  # of 3,000 bytes each, where two would be too many
        body = padded("tide", 3000)
        streams.append(held(server, "/v1/chat/completions", body))
        await until_arrived(server.chat, len(streams))
        for _ in range(20):  # until its first chunk is out
            await asyncio.sleep(0)

    assert len(server.chat.requests) == 5
    for task in streams:
        task.cancel()
    await asyncio.wait(streams)


@pytest.mark.parametrize("body", [b"not json" * 100, padded("unknown", 100), b'{"model": 5}'])
async def test_requests_that_fail_keep_nothing(body: bytes) -> None:
    server = Server(max_body_memory_bytes=3000)

    for _ in range(50):
        reply = await server.http.post("/v1/chat/completions", content=body)
        assert reply.status_code in (400, 404)
