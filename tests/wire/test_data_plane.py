"""What the data plane's contract promises of its own messages."""

from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from serve_app.settings.tree import HttpSettings
from serve_app.wire.data_plane import LENGTH, MOST_BYTES, Answer, Call, Piece, Step


def packed(message: Any) -> bytes:
    return msgspec.msgpack.encode(message)


def test_largest_allowed_body_fits_into_a_frame() -> None:
    with pytest.raises(ValidationError, match="max_body_bytes"):
        HttpSettings(max_body_bytes=MOST_BYTES - (1 << 20), max_body_memory_bytes=4 << 30)


@pytest.mark.parametrize("text", [b"AAAA", b"GET ", b"HTTP", b"zzzz"])
def test_text_is_too_long_a_frame(text: bytes) -> None:
    assert LENGTH.unpack(text)[0] > MOST_BYTES


@pytest.mark.parametrize(
    ("earlier", "kind", "now"),
    [
        ([1, 7, "completions", b"{}", "r-1", 1.5, 0.5], Call, Call(7, "completions", b"{}", "r-1", 1.5, 0.5)),
        ([4, 7, 200, {}, b"{}"], Answer, Answer(7, 200, {}, b"{}")),
        ([5, [[7, b"", [], True]]], Step, Step([Piece(7, b"", last=True)])),
    ],
)
def test_fields_that_were_added_have_the_meaning_of_their_absence(earlier: Any, kind: Any, now: Any) -> None:
    assert msgspec.msgpack.decode(packed(earlier), type=kind) == now
    assert msgspec.msgpack.decode(packed([*msgspec.msgpack.decode(packed(now)), "later"]), type=kind) == now
