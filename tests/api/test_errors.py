import pytest

from serve_app.api.errors import ApiError


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, None),
        ({"Retry-After": "120"}, None),
        ({"Retry-After": "121"}, "false"),
        ({"Retry-After": "300", "X-Should-Retry": "true"}, "true"),
    ],
)
def test_wait_above_two_minutes_says_whether_to_retry(given: dict[str, str], told: str | None) -> None:
    assert ApiError(429, "busy", headers=given).headers.get("X-Should-Retry") == told


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        (b'{"error": {"message": "busy", "param": null, "code": "full"}}', "busy", "full"),
        (b"upstream connect error\n", "upstream connect error", None),
        (b"<html>502 Bad Gateway</html>", "<html>502 Bad Gateway</html>", None),
        (b"\xff\xfe", "\ufffd\ufffd", None),
        (b'["error"]', '["error"]', None),
        (b'{"error": "no such route"}', '{"error": "no such route"}', None),
        (b"[" * 100_000, "[" * 500, None),
        (b"", "", None),
    ],
)
def test_error_of_another_process_may_be_plain_text(body: bytes, message: str, code: str | None) -> None:
    error = ApiError.from_body(502, body, {"Retry-After": "1"})

    assert (error.status, error.message, error.code) == (502, message, code)
    assert error.headers == {"Retry-After": "1"}
