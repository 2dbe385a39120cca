"""Bodies: their fields, and their bounds of size, time and values."""

import asyncio
import json
import re
import tracemalloc
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

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
from tests.refusal import refusal

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
    error = refusal(peek, body)
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

    error = refusal(read, upload, 10, b"11")

    assert upload.taken == 0
    assert (error.status, error.code) == (413, "body_too_large")
    assert "10 bytes" in error.message


@pytest.mark.parametrize("length", [None, b"2", b"0", b"-5", b"many"])
def test_body_beyond_its_declared_length_is_refused_early(length: bytes | None) -> None:
    upload = Upload(b"x" * 6, b"x" * 6, b"x" * 6, b"x" * 6)

    error = refusal(read, upload, 10, length)

    assert error.status == 413
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
    error = refusal(read_slowly, 6.0, *[b"x"] * 10)
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
