import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.batch.file_store import DamagedError
from serve_app.batch.input_file import MOST_ERRORS, Checked, check_lines, split_lines, validate
from serve_app.batch.records import Batch
from serve_app.batch.tables import BATCHES
from tests.batch.stored import NOW, Stored

CHAT = "/v1/chat/completions"
BOUND = 4096


def line(custom_id: Any = "a", body: Any = None, **changed: Any) -> bytes:
    request = {
        "custom_id": custom_id,
        "method": "POST",
        "url": CHAT,
        "body": body
        if body is not None
        else {"model": "tide", "messages": [{"role": "user", "content": "Hi"}]},
    }
    document = {name: value for name, value in (request | changed).items() if value != "left out"}
    return json.dumps(document).encode()


def check(data: bytes, most: int = 100) -> Checked:
    return check_lines([data], CHAT, most, BOUND)


def test_valid_lines_have_their_places() -> None:
    texts = [line("a"), line("ü-2"), line("c")]
    data = b"\r\n".join(texts) + b"\r\n\r\n"

    checked = check(data)

    assert checked.errors == []
    assert checked.model == "tide"
    assert [each.custom_id for each in checked.lines] == ["a", "ü-2", "c"]
    assert [each.line for each in checked.lines] == [1, 2, 3]
    for each, text in zip(checked.lines, texts, strict=True):
        assert data[each.offset : each.offset + each.length].strip() == text


def with_body(**changed: Any) -> bytes:
    body = {"model": "tide", "messages": []} | changed
    return line("b", {name: value for name, value in body.items() if value != "left out"})


@pytest.mark.parametrize(
    ("data", "code", "param", "number"),
    [
        (b"", "empty_file", None, None),
        (b"\n \r\n\n", "empty_file", None, None),
        (b"not JSON", "invalid_json_line", None, 2),
        (b"{", "invalid_json_line", None, 2),
        (b'{"custom_id": "b"} {"custom_id": "c"}', "invalid_json_line", None, 2),
        (b"[" * 5000, "line_too_large", None, 2),
        (b'{"body": ' + b"[" * 3000, "invalid_json_line", None, 2),
        (b"[]", "invalid_request", None, 2),
        (b"null", "invalid_request", None, 2),
        (b'{"custom_id": "\xff"}', "invalid_json_line", None, 2),
        (line("b", "x" * BOUND), "line_too_large", None, 2),
        (line("left out"), "missing_required_parameter", "custom_id", 2),
        (line(""), "invalid_custom_id", "custom_id", 2),
        (line(7), "invalid_custom_id", "custom_id", 2),
        (line("b" * 513), "invalid_custom_id", "custom_id", 2),
        (line("b\0"), "invalid_custom_id", "custom_id", 2),
        (line("first"), "duplicate_custom_id", "custom_id", 2),
        (line("b", method="left out"), "missing_required_parameter", "method", 2),
        (line("b", method="GET"), "invalid_method", "method", 2),
        (line("b", url="left out"), "missing_required_parameter", "url", 2),
        (line("b", url="/v1/embeddings"), "invalid_url", "url", 2),
        (line("b", url=["x"]), "invalid_url", "url", 2),
        (line("b", "left out"), "missing_required_parameter", "body", 2),
        (line("b", []), "invalid_request", "body", 2),
        (line("b", "text"), "invalid_request", "body", 2),
        (with_body(model="left out"), "missing_required_parameter", "body.model", 2),
        (with_body(model=7), "invalid_value", "body.model", 2),
        (with_body(model=""), "invalid_value", "body.model", 2),
        (with_body(model="m" * 513), "invalid_value", "body.model", 2),
        (with_body(model="a\0b"), "invalid_value", "body.model", 2),
        (with_body(model="other"), "mismatched_model", "body.model", 2),
        (with_body(stream=True), "invalid_value", "body.stream", 2),
    ],
)
def test_bad_line_has_its_documented_error(
    data: bytes, code: str, param: str | None, number: int | None
) -> None:
    checked = check(data if number is None else b"\n".join((line("first"), data, line("last"))))

    [error] = checked.errors
    assert (error.code, error.param, error.line) == (code, param, number)
    assert error.message.endswith(".")


def test_byte_order_mark_is_named() -> None:
    [error] = check(b"\xef\xbb\xbf" + line()).errors

    assert (error.code, error.line) == ("invalid_json_line", 1)
    assert "byte order mark" in error.message


def test_too_many_requests_are_counted() -> None:
    [error] = check(b"\n".join(line(str(number)) for number in range(4)), most=3).errors

    assert (error.code, error.line) == ("too_many_requests", 4)
    assert error.message == "The file has more than 3 requests, which one batch may have."


def test_blank_lines_are_counted() -> None:
    [error] = check(b"\n\n" + line("a") + b"\n \r\n\n\n", most=4).errors

    assert (error.code, error.line) == ("too_many_requests", 6)
    assert error.message == "The file has more than 4 blank lines, which one batch may have."


def test_errors_are_bounded() -> None:
    checked = check(b"x\n" * 1000)

    assert len(checked.errors) == MOST_ERRORS


def test_lines_with_a_common_prefix_are_sent_together() -> None:
    def about(number: int, text: str) -> bytes:
        body = {
            "model": "tide",
            "messages": [{"role": "system", "content": text * 300}, {"content": str(number)}],
        }
        return line(str(number), body)

    checked = check(b"\n".join(about(number, "ab"[number % 2]) for number in range(6)))

    order = sorted(checked.lines, key=lambda each: each.position)
    assert [each.custom_id for each in order] == ["0", "2", "4", "1", "3", "5"]
    assert sorted(each.position for each in checked.lines) == list(range(6))


def test_lines_without_a_common_prefix_keep_their_order() -> None:
    texts = [
        line(str(number), {"model": "tide", "messages": f"{number} {'x' * 300}"}) for number in range(20)
    ]

    assert [each.position for each in check(b"\n".join(texts)).lines] == list(range(20))


@given(st.lists(st.binary(max_size=12)), st.integers(1, 7))
def test_lines_do_not_depend_on_the_chunks(pieces: list[bytes], bound: int) -> None:
    data = b"".join(pieces)

    found = list(split_lines(pieces, bound))

    texts = data.split(b"\n")
    expected = texts[:-1] if not texts[-1] else texts
    assert [length for _, _, length, _ in found] == [len(text) for text in expected]
    assert [text for *_, text in found] == [text if len(text) <= bound else None for text in expected]
    assert [data[offset : offset + length] for _, offset, length, _ in found] == expected
    assert [number for number, *_ in found] == list(range(1, len(expected) + 1))


class TestValidate:
    @pytest.fixture
    def stored(self, tmp_path: Path) -> Iterator[Stored]:
        stored = Stored(tmp_path)
        yield stored
        stored.store.close()

    @pytest.fixture
    def batch(self, stored: Stored) -> Batch:
        """A batch with an empty object in place of its input file."""
        batch = stored.add(2)
        with stored.store.begin() as connection:
            connection.execute(BATCHES.update().values(status="validating", in_progress_at=None))
        stored.files.write(f"files/{batch.input_file_id}", [b""])
        return stored.batch(batch)

    def test_a_damaged_input_file_is_named(self, stored: Stored, batch: Batch) -> None:
        with pytest.raises(DamagedError, match=batch.input_file_id):
            validate(stored.store, stored.files, batch, BOUND, NOW)

        assert stored.batch(batch).status == "validating"

    def test_a_batch_expires_also_without_its_input_file(self, stored: Stored, batch: Batch) -> None:
        assert not validate(stored.store, stored.files, batch, BOUND, batch.expires_at)

        found = stored.batch(batch)
        assert found.status == "failed"
        assert found.errors is not None
        assert [error["code"] for error in found.errors] == ["batch_expired"]
