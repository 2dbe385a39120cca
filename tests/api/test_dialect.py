import pytest

from serve_app.api.dialect import COMPLETIONS
from serve_app.api.errors import ApiError

FIRST, DONE = b'data: {"n":1}\n\n', b"data: [DONE]\n\n"
ERROR = ApiError(500, "no", code="engine_error").frame()


@pytest.mark.parametrize(
    ("chunks", "failed"),
    [
        ((b"", DONE), False),
        ((FIRST, FIRST + DONE), False),
        ((b"", FIRST + FIRST + DONE), False),
        ((FIRST + FIRST, DONE), False),
        # Text is within JSON, where a line break is two characters.
        ((b'data: {"content":"\\n\\nevent: error\\ndata: [DONE]\\n\\n"}\n\n', DONE), False),
        ((b'data: {"content":"event: error"}\n\n', FIRST + DONE), False),
        # A comment of a queued request, however it was cut.
        ((b": waiting for a replica\n\n", FIRST + DONE), False),
        ((b"", ERROR + DONE), True),
        ((ERROR, DONE), True),
        ((FIRST, FIRST + ERROR + DONE), True),
        ((FIRST + FIRST + ERROR, DONE), True),
        ((FIRST, ApiError(502, "lost\n\nlost", code="replica_lost").last_frames()), True),
    ],
)
def test_a_stream_is_ok_unless_an_error_event_precedes_done(
    chunks: tuple[bytes, bytes], failed: bool
) -> None:
    assert COMPLETIONS.failed(*chunks) == failed
