import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from serve_app.api.body import SLOWEST_BYTES_PER_S, BodyMemory, BodyShare, peek, read_body
from serve_app.api.errors import ApiError


def refused(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        peek(body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model":"a"}', "a"),
        (b' {"messages": [{"model": "b"}], "model" : "a"} ', "a"),
        ('{"model":"é"}'.encode(), "é"),
        (b'{"model":""}', ""),
        (b'{"model":null}', None),
        (b'{"prompt":"x"}', None),
        (b"{}", None),
    ],
)
def test_the_model_is_read_off_a_body(body: bytes, model: str | None) -> None:
    assert peek(body).model == model


@pytest.mark.parametrize(
    ("value", "name"), [(b"5", "int"), (b"true", "bool"), (b"[]", "array"), (b"{}", "object")]
)
def test_model_that_is_no_text_is_refused_with_its_type(value: bytes, name: str) -> None:
    error = refused(b'{"model":' + value + b"}")

    assert (error.param, error.code) == ("model", "invalid_value")
    assert error.message.startswith("model: Expected `str | null`, got `" + name)


@pytest.mark.parametrize(
    ("body", "name"), [(b"[]", "array"), (b'"a"', "str"), (b"3", "int"), (b"null", "null")]
)
def test_a_body_that_is_no_object_is_refused(body: bytes, name: str) -> None:
    error = refused(body)

    assert (error.param, error.code) == (None, "invalid_value")
    assert error.message == f"body: Expected `object`, got `{name}`"


@pytest.mark.parametrize("closed", [True, False])
def test_nesting_without_end_is_refused(closed: bool) -> None:
    depth = 200_000

    error = refused(b'{"x":' + b"[" * depth + (b"]" * depth + b"}" if closed else b""))

    assert error.code == "invalid_json"
    assert "nested too deeply" in error.message


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


def test_a_body_is_read_to_its_end() -> None:
    assert read(Upload(b'{"a":', b"1", b"}"), 100, b"7") == b'{"a":1}'


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
