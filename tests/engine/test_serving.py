"""Which of vLLM's handlers a model has, and what they see of an HTTP request."""

from __future__ import annotations

import pytest

from serve_app.api.errors import ApiError
from serve_app.engine.serving import Serving, raw_request


def test_every_handler_that_operations_ask_for_is_mounted_under_its_name(serving: Serving) -> None:
    """vLLM renames them now and then."""
    assert hasattr(serving.handler("openai_serving_chat", "any"), "create_chat_completion")
    assert hasattr(serving.handler("openai_serving_completion", "any"), "create_completion")
    assert hasattr(serving.handler("serving_tokenization", "any"), "create_tokenize")
    assert hasattr(serving.handler("serving_tokenization", "any"), "create_detokenize")


def test_what_the_model_cannot_do_is_the_clients_error(serving: Serving) -> None:
    with pytest.raises(ApiError) as caught:
        serving.handler("serving_embedding", "embeddings")

    assert (caught.value.status, caught.value.code) == (400, "unsupported_feature")
    assert caught.value.message == "This model does not support embeddings."


def test_handlers_read_the_requests_id_from_its_header() -> None:
    assert raw_request("r-1").headers["X-Request-Id"] == "r-1"
