import pytest

from serve_app.runner.open_batch import Retry, backoff_s, retry_of
from serve_app.wire.batches import LineAnswer


def answer(status: int, code: str | None = None, retry_after_s: float = 0.0) -> LineAnswer:
    body = b'{"error":{"code":"%b"}}' % code.encode() if code is not None else b"{}"
    return LineAnswer(1, "r", status, body, retry_after_s)


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 408, 413, 422])
def test_answers_and_faults_of_the_client_are_final(status: int) -> None:
    assert retry_of(answer(status), 1, 0) is None


@pytest.mark.parametrize("code", ["queue_full", "rate_limit_exceeded", "model_unavailable", None])
@pytest.mark.parametrize("status", [429, 503])
def test_refusals_are_retried_any_number_of_times(status: int, code: str | None) -> None:
    assert retry_of(answer(status, code), 1, 0) == Retry(0.5)
    assert retry_of(answer(status, code), 1000, 0) == Retry(60.0)


def test_a_refusal_says_when_to_come_again() -> None:
    assert retry_of(answer(429, "rate_limit_exceeded", 17.0), 1, 0) == Retry(17.0)


@pytest.mark.parametrize(("status", "code"), [(503, "replicas_lost"), (500, "internal_error"), (502, None)])
def test_faults_of_the_server_are_retried_twice(status: int, code: str | None) -> None:
    """A line that ends engines must not do so until its window ends."""
    found = [retry_of(answer(status, code), attempts, attempts - 1) for attempts in (1, 2, 3)]

    assert found == [Retry(0.5, fault=True), Retry(1.0, fault=True), None]


def test_a_refusal_without_json_is_retried() -> None:
    for body in (b"<html>", b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}"):
        assert retry_of(LineAnswer(1, "r", 503, body), 1, 0) == Retry(0.5)


def test_the_wait_doubles_up_to_a_minute() -> None:
    assert [backoff_s(attempts) for attempts in (1, 2, 3, 7, 8, 10**6)] == [0.5, 1, 2, 32, 60, 60]
