"""The embedded model's files: size, tokenizer and chat template."""

import json
from typing import Any

import pytest

from serve_app.weights import embedded_model_path

transformers = pytest.importorskip("transformers")


WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(embedded_model_path(), local_files_only=True)


def test_the_whole_model_is_small() -> None:
    total = sum(file.stat().st_size for file in embedded_model_path().iterdir())
    assert total < 6_000_000


def test_both_stop_tokens_are_listed(tokenizer: Any) -> None:
    generation = json.loads((embedded_model_path() / "generation_config.json").read_text())
    stops = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert generation["eos_token_id"] == stops
    assert tokenizer.eos_token == "<|im_end|>"


@pytest.mark.parametrize(
    "text",
    [
        "plain words, 123 and   spaces",
        "tabs\tand\r\nlines\n\n",
        "emoji 🌊🐙👩‍👩‍👧 and ☀️",
        "漢字かな交じり文 中文 한국어 العربية हिन्दी",
        "é “curly” — dashes … \u0000 \u200b \U0010ffff",
        " leading and trailing ",
    ],
)
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tool_tags_are_single_tokens_that_stay_in_decoded_text(tokenizer: Any) -> None:
    text = "<tool_call>\n{}\n</tool_call>"
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.convert_tokens_to_ids("<tool_call>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": None}],
        [{"role": "user"}],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": []}],
        [{"role": "system", "content": None}, {"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "assistant", "content": None, "tool_calls": None}],
    ],
)
@pytest.mark.parametrize("tools", [None, [], [WEATHER]])
def test_the_template_accepts_missing_content(tokenizer: Any, messages: Any, tools: Any) -> None:
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>assistant\n")
    assert "None" not in text


def test_parts_and_strings_render_alike(tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "Hello, "}, {"type": "text", "text": "sea"}]
    as_parts = [{"role": "system", "content": parts}, {"role": "user", "content": parts}]
    as_text = [{"role": "system", "content": "Hello, sea"}, {"role": "user", "content": "Hello, sea"}]
    assert tokenizer.apply_chat_template(as_parts, tokenize=False) == tokenizer.apply_chat_template(
        as_text, tokenize=False
    )


def test_a_tool_conversation_in_full(tokenizer: Any) -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Zürich"}},
    }
    written = {**call, "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'}}
    expected = (
        "<|im_start|>system\nTools:\n"
        '{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}'
        "<|im_end|>\n"
        "<|im_start|>user\nWeather?<|im_end|>\n"
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n<tool_response>\n18\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    for tool_call in (call, written):
        messages = [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [tool_call]},
            {"role": "tool", "tool_call_id": "c", "content": "18"},
        ]
        text = tokenizer.apply_chat_template(
            messages, tools=[WEATHER], tokenize=False, add_generation_prompt=True
        )
        assert text == expected
