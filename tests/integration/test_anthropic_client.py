"""Anthropic's official client, unmodified, against the real engine through the real proxy."""

from collections.abc import Iterator

import anthropic
import pytest

from tests.integration.cluster import Running
from tests.integration.conftest import CHAT, EMBED

SEA = [{"role": "user", "content": "Tell me about the sea."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY = {"temperature": 0}
TOOL = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def claude(app: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=app.url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def prompt_tokens(usage: anthropic.types.Usage) -> int:
    """All tokens of a prompt, which Anthropic's usage has in three parts."""
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def test_the_stream_helper_says_what_a_whole_message_does(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(model=CHAT, messages=SEA, max_tokens=40, extra_body=GREEDY)
    with claude.messages.stream(model=CHAT, messages=SEA, max_tokens=40, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()

    assert text == final.content[0].text == whole.content[0].text
    assert len(text.split()) > 5
    assert whole._request_id
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert prompt_tokens(final.usage) == prompt_tokens(whole.usage)


def test_a_tool_is_called_and_its_result_goes_back(claude: anthropic.Anthropic) -> None:
    options = {"model": CHAT, "max_tokens": 80, "extra_body": GREEDY, "tools": [TOOL]}
    forced = {"type": "tool", "name": "get_weather"}
    whole = claude.messages.create(messages=WEATHER, tool_choice=forced, **options)
    with claude.messages.stream(messages=WEATHER, tool_choice=forced, **options) as stream:
        streamed = stream.get_final_message()

    (asked,) = whole.content
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert asked.input == streamed.content[0].input
    assert isinstance(asked.input["city"], str)
    result = {"type": "tool_result", "tool_use_id": asked.id, "content": "Rain, 9 degrees."}
    reply = claude.messages.create(
        messages=[
            *WEATHER,
            {"role": "assistant", "content": [block.model_dump() for block in whole.content]},
            {"role": "user", "content": [result]},
        ],
        **options,
    )
    assert prompt_tokens(reply.usage) > prompt_tokens(whole.usage)


@pytest.mark.parametrize(
    ("fields", "error", "kind"),
    [
        ({"model": "nope"}, anthropic.NotFoundError, "not_found_error"),
        ({"model": EMBED}, anthropic.BadRequestError, "invalid_request_error"),
        ({"extra_body": {"temperature": 5}}, anthropic.BadRequestError, "invalid_request_error"),
        ({"max_tokens": 10**6}, anthropic.BadRequestError, "invalid_request_error"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_mistake_raises_the_clients_own_error(
    claude: anthropic.Anthropic, fields: dict, error: type[anthropic.APIStatusError], kind: str, stream: bool
) -> None:
    body = {"model": CHAT, "messages": SEA, "max_tokens": 5, "stream": stream, **fields}
    with pytest.raises(error) as caught:
        claude.messages.create(**body)

    assert caught.value.body["error"]["type"] == kind
    assert caught.value.request_id == caught.value.body["request_id"]
