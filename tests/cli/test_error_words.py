from __future__ import annotations

import pytest

from serve_app.cli.error_words import error_words


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"error":{"message":"full","code":"queue_full"}}', "queue_full: full"),
        (b'{"error":{"message":"full","type":"server_error","code":null}}', "server_error: full"),
        (b'{"error":"no such route"}', "no such route"),
        (b"<h1>Bad Gateway</h1>\n", "<h1>Bad Gateway</h1>"),
        (b"[1]", "[1]"),
        (b"", ""),
    ],
)
def test_errors_in_words(data: bytes, words: str) -> None:
    assert error_words(data) == words


def test_an_error_nested_beyond_reading_is_told_as_it_is() -> None:
    assert error_words(b'{"error":' + b"[" * 100_000).startswith('{"error":[[')
