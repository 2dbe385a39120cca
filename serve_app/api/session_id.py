"""`X-Session-ID`: a client's name of the conversation that a request belongs to."""

from collections.abc import Iterable

MOST_BYTES = 256
_HEADER = b"x-session-id"


def session_of(headers: Iterable[tuple[bytes, bytes]], api_key: str | None = None) -> bytes:
    """Return the session in the headers of a request, whose names are in lower case; empty without one.

    It belongs to the key with the name `api_key`, since others may use the same. One that is longer than
    `MOST_BYTES` is left out: it is a hint, and refuses nothing.
    """
    found = next((value for name, value in headers if name == _HEADER), b"")
    if not found or len(found) > MOST_BYTES:
        return b""
    return found if api_key is None else api_key.encode() + b"\0" + found
