from types import SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from serve_app.api.errors import ApiError
from serve_app.engine.bounds import (
    check_characters,
    check_inputs,
    check_numbers,
    check_sampling,
    check_token_ids,
)

VOCABULARY = 1000
NAN, INF = float("nan"), float("inf")
BIG = {"maximum": 2**64}


def request(**fields: Any) -> Any:
    return SimpleNamespace(**{"n": 1, "logit_bias": None, **fields})


def check(prompts: int = 1, **fields: Any) -> None:
    check_sampling(request(**fields), prompts, max_sequences=8, vocabulary=VOCABULARY)


def refused(prompts: int = 1, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check(prompts, **fields)
    error = caught.value
    assert (error.status, error.code) == (400, "invalid_value")
    return error


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": None},
        {"n": 8},
        {"temperature": 0.0, "top_p": 1.0, "min_p": None},
        {"stop_token_ids": [0, 999], "allowed_token_ids": None, "logprob_token_ids": []},
        {"logit_bias": {"0": -100.0, "999": 100.0}},
        {"logit_bias": {}},
    ],
)
def test_what_is_within_its_bounds_passes(fields: dict[str, Any]) -> None:
    check(**fields)


def test_a_request_may_have_as_many_sequences_as_the_settings_say() -> None:
    check(prompts=4, n=2)

    error = refused(prompts=3, n=3)

    assert error.param == "n"
    assert error.message == "n = 3: n times the 3 prompt(s) must be at most 8"


def test_prompts_alone_can_be_too_many_sequences() -> None:
    assert refused(prompts=9, n=None).message == "n = 1: n times the 9 prompt(s) must be at most 8"


@pytest.mark.parametrize("n", [0, -1])
def test_a_request_has_at_least_one_sequence(n: int) -> None:
    assert refused(n=n).message == f"n = {n}: must be at least 1"


def out_of_range(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check_numbers(ChatCompletionRequest(messages=[], **fields))
    error = caught.value
    assert (error.status, error.code) == (400, "invalid_value")
    return error


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty", "length_penalty"])
def test_numbers_are_finite(name: str, value: float) -> None:
    error = out_of_range(**{name: value})

    assert error.param == name
    assert error.message == f"{name} = {value}: must be a finite number"


@pytest.mark.parametrize("value", [2**31, 2**63, 2**64, "18446744073709551616"])
@pytest.mark.parametrize("name", ["top_k", "min_tokens", "stream_interval", "max_tokens"])
def test_integers_of_the_engine_core_have_32_bits(name: str, value: Any) -> None:
    error = out_of_range(**{name: value})

    assert error.param == name
    assert error.message == f"{name} = {int(value)}: must be from -2147483648 to 2147483647"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"vllm_xargs": {"a": [1, 2**64]}}, "vllm_xargs.a[1]"),
        ({"vllm_xargs": {"a": INF}}, "vllm_xargs.a"),
        ({"kv_transfer_params": {"a": [{"b": [-(2**63) - 1]}]}}, "kv_transfer_params.a[0].b[0]"),
        ({"chat_template_kwargs": {"a": {"b": 2**64}}}, "chat_template_kwargs.a.b"),
        ({"structured_outputs": {"json": BIG}}, "structured_outputs.json.maximum"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"a": 2**64}},
                }
            },
            "response_format.json_schema.schema.a",
        ),
        (
            {"tools": [{"function": {"name": "a", "parameters": {"enum": [2**64]}}}]},
            "tools[0].function.parameters.enum[0]",
        ),
        (
            {"repetition_detection": {"max_pattern_size": 4, "min_count": 2**31}},
            "repetition_detection.min_count",
        ),
        (
            {"repetition_detection": {"max_pattern_size": 1025, "min_count": 2}},
            "repetition_detection.max_pattern_size",
        ),
        ({"repetition_penalty": 1e308}, "repetition_penalty"),
        ({"repetition_penalty": 1e-308}, "repetition_penalty"),
        ({"length_penalty": -1e308}, "length_penalty"),
        ({"logit_bias": {"5": INF}}, "logit_bias.5"),
        ({"stop_token_ids": [5, 2**64]}, "stop_token_ids[1]"),
    ],
)
def test_a_number_out_of_range_is_named_wherever_it_is(fields: dict[str, Any], param: str) -> None:
    assert out_of_range(**fields).param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 2**31 - 1, "seed": -(2**63), "priority": 2**63 - 1, "temperature": 0.0},
        {"vllm_xargs": {"a": [-(2**63), 2**64 - 1, 1e308, "18446744073709551616"]}},
        {"tools": [{"function": {"name": "a", "parameters": {"maximum": 2**64 - 1}}}]},
        {"user": "18446744073709551616", "unknown": 2**64},
    ],
)
def test_numbers_that_the_core_can_take_pass(fields: dict[str, Any]) -> None:
    check_numbers(ChatCompletionRequest(messages=[{"role": "user", "content": "a"}], **fields))


@pytest.mark.parametrize("token", [-1, 1000, 2**63])
@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logprob_token_ids"])
def test_tokens_are_the_vocabularys(name: str, token: int) -> None:
    error = refused(**{name: [5, token]})

    assert error.param == name
    assert error.message == f"{name} = {token}: token ids must be from 0 to 999"


@pytest.mark.parametrize("key", ["1000", "-1", "sea", "", "1.0", " 1", "²", "\u0661", "0x1"])
def test_biased_tokens_are_the_vocabularys(key: str) -> None:
    error = refused(logit_bias={"5": 1.0, key: 1.0})

    assert error.param == "logit_bias"
    assert error.message == f"logit_bias = {key!r}: keys must be token ids from 0 to 999"


@pytest.mark.parametrize("bias", [NAN, INF])
def test_biases_are_finite(bias: float) -> None:
    assert refused(logit_bias={"5": bias}).message == f"logit_bias = {bias}: must be a finite number"


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("sea", 1),
        (None, 1),
        ([], 0),
        ([0, 999], 1),
        (["sea", "tide"], 2),
        ([[0], [1, 2], [999]], 3),
        ([[], [1]], 2),
    ],
)
def test_prompts_are_counted(value: Any, prompts: int) -> None:
    assert check_token_ids("prompt", value, VOCABULARY) == prompts


@pytest.mark.parametrize("value", [[1, 1000], [-1], [[1], [2, 1000]], [[1], [-1]]])
def test_a_token_outside_the_vocabulary_is_refused_wherever_it_stands(value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        check_token_ids("prompt", value, VOCABULARY)

    assert (caught.value.status, caught.value.param) == (400, "prompt")
    assert caught.value.message.endswith("token ids must be from 0 to 999")


TOKENIZER = SimpleNamespace(max_chars_per_token=4)


@pytest.mark.parametrize("text", ["a" * 32, ["a" * 32, "b"], [1] * 1000, None])
def test_a_text_that_may_fit_the_context_passes(text: object) -> None:
    check_characters("prompt", text, 8, TOKENIZER)


@pytest.mark.parametrize("text", ["a" * 33, ["b", "a" * 33]])
def test_a_text_that_cannot_fit_the_context_is_refused_before_it_is_tokenized(text: object) -> None:
    with pytest.raises(ApiError, match="33 characters, and the model's context length is 8 tokens") as caught:
        check_characters("prompt", text, 8, TOKENIZER)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


def test_the_number_of_inputs_is_bounded() -> None:
    check_inputs("input", ["a"] * 2, 2)
    check_inputs("input", [1] * 3, 2)
    check_inputs("input", [], 2)
    with pytest.raises(ApiError, match="input: 3 inputs; at most 2"):
        check_inputs("input", ["a"] * 3, 2)
