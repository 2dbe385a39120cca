import pytest

from serve_app.api.session_id import MOST_BYTES, session_of


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        ([], b""),
        ([(b"accept", b"*/*"), (b"x-session-id", b"chat-7")], b"chat-7"),
        ([(b"x-session-id", b"a"), (b"x-session-id", b"b")], b"a"),
        ([(b"x-session-id", b"a" * MOST_BYTES)], b"a" * MOST_BYTES),
        ([(b"x-session-id", b"a" * (MOST_BYTES + 1))], b""),
    ],
)
def test_the_first_session_counts_unless_it_is_too_long(
    headers: list[tuple[bytes, bytes]], session: bytes
) -> None:
    assert session_of(headers) == session


def test_a_session_belongs_to_its_key() -> None:
    headers = [(b"x-session-id", b"1")]

    assert len({session_of(headers, key) for key in (None, "ann", "bob")}) == 3
    assert session_of([], "ann") == b""
