import pytest

from serve_app.api.dialect import COMPLETIONS, MESSAGES
from serve_app.api.engine_client import EngineRequest
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


EVENT = b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
FAILED = MESSAGES.last_frames(
    ApiError(502, "lost\n\nlost", code="replica_lost"), EngineRequest("messages", b"", "r-1")
)
QUOTED = b'event: content_block_delta\ndata: {"text":"\\n\\nevent: message_stop\\n"}\n\n'


@pytest.mark.parametrize(
    ("frames", "ends", "failed"),
    [
        (STOP, True, False),
        (EVENT + EVENT + STOP, True, False),
        (FAILED, True, True),
        (EVENT + FAILED, True, True),
        (EVENT, False, True),
        (STOP + EVENT, False, True),
        (QUOTED, False, True),
        (b"", False, True),
    ],
)
def test_messages_end_with_message_stop_or_an_error_event(frames: bytes, ends: bool, failed: bool) -> None:
    assert (MESSAGES.ends(frames), MESSAGES.failed(b"", frames)) == (ends, failed)
