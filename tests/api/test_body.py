"""Bodies: their fields, and their bounds of size, time, values and memory."""

import asyncio
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.body import (
    MAX_CONTAINERS,
    MAX_TOKEN_IDS,
    MAX_VALUES,
    SLOWEST_BYTES_PER_S,
    check_structure,
    count_values,
    peek,
    read_body,
    repeated_bytes,
)
from serve_app.api.body_memory import BodyMemory, BodyShare
from serve_app.api.errors import ApiError
from tests.api.server import Server, error_of
from tests.stub_engine import LIMIT_S, MuteEngine, StubEngine, stalled

# Fields.


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b' {"messages": [{"model": "b"}], "model" : "a"} ', "a"),
        ('{"model":"é"}'.encode(), "é"),
        (b'{"model":""}', ""),
        (b'{"model":null}', None),
        (b"{}", None),
    ],
)
def test_the_model_is_read_off_a_body(body: bytes, model: str | None) -> None:
    assert peek(body).model == model


DEPTH = 200_000


@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [
        (b'{"model":5}', "model", "invalid_value", "model: Expected `str | null`, got `int`"),
        (b'{"model":{}}', "model", "invalid_value", "model: Expected `str | null`, got `object`"),
        (b"[]", None, "invalid_value", "body: Expected `object`, got `array`"),
        (b"null", None, "invalid_value", "body: Expected `object`, got `null`"),
        (b'{"model": "a", nope', None, "invalid_json", "The body is not valid JSON: "),
        (b'{"x":' + b"[" * DEPTH, None, "invalid_json", "The body is nested too deeply."),
        (
            b'{"x":' + b"[" * DEPTH + b"]" * DEPTH + b"}",
            None,
            "invalid_json",
            "The body is nested too deeply.",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_body_without_usable_fields_is_refused(
    body: bytes, param: str | None, code: str, message: str
) -> None:
    with pytest.raises(ApiError) as caught:
        peek(body)

    error = caught.value
    assert (error.status, error.param, error.code) == (400, param, code)
    assert error.message.startswith(message)


# Size and time.


class Upload:
    """A request body on its way in: `receive` of an ASGI server, with what it has handed out."""

    def __init__(self, *chunks: bytes, leaves: bool = False) -> None:
        self.pending: list[Message] = [
            {"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks
        ]
        self.pending.append(
            {"type": "http.disconnect"}
            if leaves
            else {"type": "http.request", "body": b"", "more_body": False}
        )
        self.taken = 0

    async def receive(self) -> Message:
        if not self.pending:
            await asyncio.Event().wait()
        self.taken += 1
        return self.pending.pop(0)


def read(upload: Upload, max_bytes: int, length: bytes | None = None) -> bytes:
    headers = [] if length is None else [(b"content-length", length)]
    request = Request({"type": "http", "method": "POST", "headers": headers}, upload.receive)
    return asyncio.run(read_body(request, max_bytes, 60.0, BodyShare(BodyMemory(1 << 30), None)))


@pytest.mark.parametrize("length", [None, b"10"])
def test_a_body_may_be_as_large_as_the_bound(length: bytes | None) -> None:
    assert read(Upload(b"12345", b"67890"), 10, length) == b"1234567890"


def test_too_large_declared_body_is_refused_before_reading() -> None:
    upload = Upload(b"x" * 11)

    with pytest.raises(ApiError) as caught:
        read(upload, 10, b"11")

    assert upload.taken == 0
    assert (caught.value.status, caught.value.code) == (413, "body_too_large")
    assert "10 bytes" in caught.value.message


@pytest.mark.parametrize("length", [None, b"2", b"0", b"-5", b"many"])
def test_body_beyond_its_declared_length_is_refused_early(length: bytes | None) -> None:
    upload = Upload(b"x" * 6, b"x" * 6, b"x" * 6, b"x" * 6)

    with pytest.raises(ApiError) as caught:
        read(upload, 10, length)

    assert caught.value.status == 413
    assert upload.taken == 2


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time only moves when it is told to."""

    now = 0.0

    def time(self) -> float:
        return self.now


class SlowUpload(Upload):
    """One whose chunks come `gap_s` apart; whatever is due by then happens before the next."""

    def __init__(self, clock: Clock, gap_s: float, *chunks: bytes) -> None:
        super().__init__(*chunks)
        self._clock = clock
        self._gap_s = gap_s

    async def receive(self) -> Message:
        self._clock.now += self._gap_s
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await super().receive()


def read_slowly(gap_s: float, *chunks: bytes) -> tuple[bytes, float]:
    """The body whose chunks come so far apart, and when it was complete. It may take 20 s."""
    with asyncio.Runner(loop_factory=Clock) as runner:
        clock = runner.get_loop()
        assert isinstance(clock, Clock)
        upload = SlowUpload(clock, gap_s, *chunks)
        request = Request({"type": "http", "method": "POST", "headers": []}, upload.receive)
        return runner.run(read_body(request, 1 << 30, 20.0, BodyShare(BodyMemory(1 << 32), None))), clock.now


def test_a_body_that_trickles_is_refused_and_its_connection_closed() -> None:
    with pytest.raises(ApiError) as caught:
        read_slowly(6.0, *[b"x"] * 10)

    error = caught.value
    assert (error.status, error.code, error.headers) == (408, "body_timeout", {"Connection": "close"})
    assert "3 bytes arrived in time. This server waits 20 s" in error.message


def test_a_large_body_may_take_longer_than_a_small_one() -> None:
    chunk = b"x" * SLOWEST_BYTES_PER_S

    assert read_slowly(0.9, *[chunk] * 200) == (chunk * 200, pytest.approx(0.9 * 201))


# Values.


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    "accepted",
    [
        body(messages=[{"role": "user", "content": "sea"}]),
        body(prompt='{[,"\\' * 500_000),
        body(prompt=[1] * MAX_TOKEN_IDS),
        body(prompt=[[1] * 1000] * 64, stop=["a", "b"]),
        body(tokens=[1] * 100_000),
        body(input=["tide, and [ebb]"] * 2_048),
        body(messages=[{"role": "user", "content": "a, b"}] * 2_048),
        b"not JSON" * 100_000,
        b"",
    ],
    ids=lambda value: value[:24].decode(),
)
async def test_what_is_quick_to_validate_passes(accepted: bytes) -> None:
    await check_structure(accepted)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (
            body(messages=[{"role": "user", "content": "a"}] * 100_000),
            f"objects and lists; at most {MAX_CONTAINERS}",
        ),
        (body(input=[[1]] * 100_000), f"objects and lists; at most {MAX_CONTAINERS}"),
        (body(prompt=[1] * (MAX_TOKEN_IDS + 1)), f"token ids; at most {MAX_TOKEN_IDS}"),
        (body(prompt=[1.5] * 100_000), f"values; at most {MAX_VALUES}"),
        (body(input=["a"] * 100_000), f"values; at most {MAX_VALUES}"),
        (body(stop_token_ids=[1] * 100_000), f"values; at most {MAX_VALUES}"),
        (body(logit_bias={str(i): 1 for i in range(100_000)}), f"values; at most {MAX_VALUES}"),
        (b"[" * 1_000_000, f"objects and lists; at most {MAX_CONTAINERS}"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_would_hold_up_others_is_refused_with_its_bound(refused: bytes, said: str) -> None:
    with pytest.raises(ApiError, match=re.escape(said)) as caught:
        await check_structure(refused)

    assert caught.value.status == 400


def test_strings_are_no_structure() -> None:
    assert count_values(b'{"a": "[{,\\"[,", "b\\\\": [1, 2]}') == (2, 3)


async def test_fields_that_hold_no_token_ids_are_never_built() -> None:
    many = body(prompt="a", **{str(i): i for i in range(100_000)})
    tracemalloc.start()
    with pytest.raises(ApiError):
        await check_structure(many)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 5 * len(many)  # two copies of the text; an object for each field took ten times the text


# Memory.


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

    with pytest.raises(ApiError) as caught:
        BodyShare(memory, None).grow(1)
    assert memory.used_bytes == 500
    assert caught.value.status == 429
    assert caught.value.code == "body_memory_full"


def test_error_names_the_bound_and_has_retry_after() -> None:
    memory = BodyMemory(1000)
    kept = taken(memory, None, "tide", 450)

    with pytest.raises(ApiError) as caught:
        taken(memory, None, "tide", 100)
    assert "450 of them of model 'tide'" in caught.value.message
    assert "max_body_memory_bytes = 1000" in caught.value.message
    assert caught.value.headers == {"Retry-After": "5", "Connection": "close"}
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


def held(server: Server, path: str, body: bytes, **headers: str) -> asyncio.Task[object]:
    return asyncio.create_task(server.http.post(path, content=body, headers=headers))


async def until_arrived(engine: StubEngine, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(engine.requests) < count:
            await asyncio.sleep(0)


def padded(model: str, size: int) -> bytes:
    return b'{"model":"%s","pad":"%s"}' % (model.encode(), b"x" * size)


async def test_flood_of_one_model_leaves_another_served() -> None:
    chat = MuteEngine()
    server = Server(chat=chat, max_body_memory_bytes=20_000)
    waiting = [held(server, "/v1/chat/completions", padded("tide", 3000)) for _ in range(3)]
    await until_arrived(chat, 3)

    refused = await server.http.post("/v1/chat/completions", content=padded("tide", 3000))
    served = await server.http.post("/v1/embeddings", content=padded("org/embed", 3000))

    assert (refused.status_code, error_of(refused)["code"]) == (429, "body_memory_full")
    assert refused.headers["retry-after"] == "5"
    assert served.status_code == 200
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    again = await server.http.post("/v1/embeddings", content=padded("org/embed", 4000))
    assert again.status_code == 200


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


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"query": "sea", "documents": ["a", "b", "c"]}, 2 * len('"sea"')),
        ({"queries": ["sea"], "items": ["a", "b", "c"]}, 2 * len('"sea"')),
        ({"text_1": "sea", "text_2": ["a", {"content": []}]}, len('"sea"')),
        ({"data_1": ["sea", "tide"], "data_2": ["a", "b"]}, 0),
        ({"query": "sea", "documents": "a"}, 0),
        ({"query": "sea", "documents": []}, 0),
        ({"query": "sea"}, 0),
        ({"documents": ["a", "b"]}, 0),
        ({"query": None, "documents": 5}, 0),
    ],
)
def test_a_query_is_read_again_for_each_further_document(body: dict[str, object], expected: int) -> None:
    assert repeated_bytes(json.dumps(body).encode()) == expected


async def test_keys_share_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("first-key-0123456789abcdef\nsecond-key-0123456789abcdef\n")
    chat = MuteEngine()
    server = Server(chat=chat, api_keys=ApiKeyFile(str(file)), max_body_memory_bytes=20_000)
    first, second = (f"Bearer {name}-key-0123456789abcdef" for name in ("first", "second"))
    waiting = [
        held(server, "/v1/chat/completions", padded("tide", 3000), authorization=first) for _ in range(3)
    ]
    await until_arrived(chat, 3)

    body = padded("org/embed", 3000)
    refused = await server.http.post("/v1/embeddings", content=body, headers={"authorization": first})
    served = await server.http.post("/v1/embeddings", content=body, headers={"authorization": second})

    assert (refused.status_code, served.status_code) == (429, 200)
    assert "of API key " in error_of(refused)["message"]
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
