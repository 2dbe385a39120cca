import pytest

from serve_app.api.engine_client import (
    ColdWait,
    EngineRequest,
    RequestState,
)


@pytest.mark.parametrize(("eta_s", "eta"), [(None, b"unknown"), (0.0, b"0"), (12.1, b"13")])
def test_a_wait_is_told_in_a_comment_that_parsers_skip(eta_s: float | None, eta: bytes) -> None:
    wait = ColdWait("org/tide", "weights_and_kv_cache", eta_s, 7.9)

    assert wait.comment() == (
        b": waiting for a replica of org/tide: phase=weights_and_kv_cache eta_s=" + eta + b" waited_s=7\n\n"
    )


def test_equality_of_requests_ignores_time_and_state() -> None:
    early = EngineRequest("generate", b"{}", "r", 1.0, state=RequestState(queued_s=1.0))
    assert early == EngineRequest("generate", b"{}", "r")


def test_a_released_body_leaves_its_size() -> None:
    request = EngineRequest("generate", b"{}", "r")
    request.release_body()
    assert (request.body, request.body_bytes) == (b"", 2)
