import json

import pytest

from serve_app.api.errors import DONE, ApiError


def test_the_body_has_the_four_fields_of_openais_errors() -> None:
    error = ApiError(404, "model = 'x': does not exist.", param="model", code="model_not_found")

    assert json.loads(error.body()) == {
        "error": {
            "message": "model = 'x': does not exist.",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (499, "invalid_request_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_the_type_says_whose_fault_it_is(status: int, kind: str) -> None:
    assert ApiError(status, "no").type == kind


def test_frame_is_an_error_event_with_the_body() -> None:
    error = ApiError(502, "first line\n\nsecond line", code="replica_lost")

    assert error.frame() == b"event: error\ndata: " + error.body() + b"\n\n"
    assert error.frame().count(b"\n\n") == 1  # line breaks of the message are escaped


def test_the_last_frames_end_the_stream() -> None:
    error = ApiError(502, "lost")

    assert error.last_frames() == error.frame() + b"data: [DONE]\n\n"
    assert DONE == b"data: [DONE]\n\n"
