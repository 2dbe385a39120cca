from __future__ import annotations

from typing import get_args

from serve_app.api.client import OPERATIONS, EngineReply, Operation
from tests.stub_engine import frames


def test_every_operation_that_can_be_named_is_listed() -> None:
    assert set(OPERATIONS) == set(get_args(Operation))


def test_the_media_type_follows_from_what_is_sent() -> None:
    assert EngineReply(200, b"{}").content_type == "application/json"
    assert EngineReply(200, stream=frames()()).content_type == "text/event-stream"
