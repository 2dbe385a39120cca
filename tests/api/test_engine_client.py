from typing import get_args

import pytest

from serve_app.api.engine_client import (
    OPERATIONS,
    ColdWait,
    EngineReply,
    EngineRequest,
    Operation,
    RequestState,
)
from tests.stub_engine import frames


def test_every_operation_that_can_be_named_is_listed() -> None:
    assert set(OPERATIONS) == set(get_args(Operation))


def test_the_media_type_follows_from_what_is_sent() -> None:
    assert EngineReply(200, b"{}").content_type == "application/json"
    assert EngineReply(200, stream=frames()()).content_type == "text/event-stream"


@pytest.mark.parametrize(("eta_s", "eta"), [(None, b"unknown"), (0.0, b"0"), (12.1, b"13")])
def test_a_wait_is_told_in_a_comment_that_parsers_skip(eta_s: float | None, eta: bytes) -> None:
    wait = ColdWait("org/tide", "weights_and_kv_cache", eta_s, 7.9)

    assert wait.comment() == (
        b": waiting for a replica of org/tide: phase=weights_and_kv_cache eta_s=" + eta + b" waited_s=7\n\n"
    )


def test_requests_are_equal_whenever_they_came_and_whatever_became_of_them() -> None:
    early = EngineRequest("generate", b"{}", "r", 1.0, state=RequestState(queued_s=1.0))
    assert early == EngineRequest("generate", b"{}", "r")


def test_a_released_body_leaves_its_size() -> None:
    request = EngineRequest("generate", b"{}", "r")
    request.release_body()
    assert (request.body, request.body_bytes) == (b"", 2)
