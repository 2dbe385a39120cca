import pytest

from serve_app.api.engine_client import OPERATIONS, EngineRequest, Operation
from serve_app.ingress.admission import MOST_PROMPT_TOKENS, estimated_prompt_tokens


def estimate(
    body_bytes: int, operation: Operation = "chat_completions", most: int = MOST_PROMPT_TOKENS
) -> int:
    return estimated_prompt_tokens(EngineRequest(operation, b"x" * body_bytes, "r-1"), 4, most)


@pytest.mark.parametrize(("body_bytes", "tokens"), [(0, 0), (3, 0), (4, 1), (2048, 512)])
def test_four_bytes_of_a_body_are_a_token(body_bytes: int, tokens: int) -> None:
    assert estimate(body_bytes) == tokens


def test_no_prompt_is_longer_than_the_context() -> None:
    assert estimate(1 << 20, most=2048) == 2048
    assert estimate(1 << 20) == MOST_PROMPT_TOKENS


@pytest.mark.parametrize("operation", OPERATIONS)
def test_tokenizing_prefills_nothing(operation: Operation) -> None:
    assert (estimate(400, operation) == 0) is (operation in ("tokenize", "detokenize"))


def test_the_learned_ratio_turns_bytes_into_tokens() -> None:
    assert estimated_prompt_tokens(EngineRequest("completions", b"x" * 400, "r-1"), 3.2, 1000) == 125
