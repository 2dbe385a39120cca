import pytest

from serve_app.api.engine_client import OUTCOMES, Outcome
from serve_app.api.engine_response import status_outcome, stream_outcome
from serve_app.api.errors import DONE, ApiError

TOKEN = b'data: {"n":1}\n\n'
ERROR = ApiError(500, "no", code="engine_error").frame()


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "ok"),
        (399, "ok"),
        (400, "client_error"),
        (404, "client_error"),
        (422, "client_error"),
        (428, "client_error"),
        (429, "rejected"),
        (430, "client_error"),
        (499, "client_error"),
        (500, "error"),
        (502, "error"),
        (503, "error"),
    ],
)
def test_a_status_tells_whose_fault_it_was(status: int, outcome: Outcome) -> None:
    assert status_outcome(status) == outcome
    assert outcome in OUTCOMES


@pytest.mark.parametrize(
    "chunks",
    [
        (b"", DONE),
        (TOKEN, DONE),
        (TOKEN, TOKEN + DONE),
        (b"", TOKEN + TOKEN + DONE),
        (TOKEN + TOKEN, DONE),
        # Text is within JSON, where a line break is two characters.
        (b'data: {"content":"\\n\\nevent: error\\ndata: [DONE]\\n\\n"}\n\n', DONE),
        (b'data: {"content":"event: error"}\n\n', TOKEN + DONE),
        # A comment of a held request, however it was cut.
        (b": waiting for a replica\n\n", TOKEN + DONE),
    ],
)
def test_a_stream_that_ends_with_done_after_a_token_is_answered(chunks: tuple[bytes, bytes]) -> None:
    assert stream_outcome(*chunks) == "ok"


@pytest.mark.parametrize(
    "chunks",
    [
        (b"", ERROR + DONE),
        (ERROR, DONE),
        (TOKEN, ERROR + DONE),
        (TOKEN, TOKEN + ERROR + DONE),
        (TOKEN + ERROR, DONE),
        (TOKEN + TOKEN + ERROR, DONE),
        (TOKEN, ApiError(502, "lost\n\nlost", code="replica_lost").last_frames()),
    ],
)
def test_an_error_event_before_done_is_an_error_however_the_frames_are_cut(
    chunks: tuple[bytes, bytes],
) -> None:
    assert stream_outcome(*chunks) == "error"


@pytest.mark.parametrize("chunks", [(b"", b""), (b"", TOKEN), (DONE, TOKEN), (TOKEN, ERROR)])
def test_a_stream_without_its_end_was_cut(chunks: tuple[bytes, bytes]) -> None:
    assert stream_outcome(*chunks) == "error"
