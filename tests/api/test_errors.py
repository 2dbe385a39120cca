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
