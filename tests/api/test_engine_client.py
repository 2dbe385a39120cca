from typing import get_args

import pytest

from serve_app.api.cold_wait import ColdWait
from serve_app.api.engine_client import OPERATIONS, EngineReply, EngineRequest, Operation
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


async def tell(wait: ColdWait) -> None: ...


def test_requests_are_equal_whenever_they_came_and_whoever_is_told_of_their_wait() -> None:
    assert EngineRequest("generate", b"{}", "r", 1.0, tell_wait=tell) == EngineRequest("generate", b"{}", "r")


def test_a_request_that_is_handed_over_arrived_as_long_ago_as_it_has_waited() -> None:
    request = EngineRequest.handed_over("generate", b"{}", "r", waited_s=12.5, held_s=12.0)

    assert request.waited_s == pytest.approx(12.5, abs=0.5)
    assert request.waited_s >= 12.5
    assert request.held_s == 12.0
