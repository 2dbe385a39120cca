"""Bounds on values, and sequences that must not reach the engine core or do not."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.serial_utils import MsgpackEncoder

from serve_app.api.engine_client import Operation
from serve_app.api.errors import ApiError
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.local_client import LocalEngine
from serve_app.engine.number_bounds import (
    check_characters,
    check_list_lengths,
    check_numbers,
    check_sampling,
    check_token_ids,
)
from tests.engine.calls import engine_call
from tests.engine.stub_engine_core import StubEngineCore, front_end

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
    ("prompts", "n", "message"),
    [
        (3, 3, "n = 3: n times the 3 prompt(s) must be at most 8"),
        (9, None, "n = 1: n times the 9 prompt(s) must be at most 8"),
        (1, 0, "n = 0: must be at least 1"),
    ],
)
def test_the_number_of_sequences_is_bounded(prompts: int, n: int | None, message: str) -> None:
    check(prompts=4, n=2, stop_token_ids=[0, 999], logit_bias={"0": -100.0, "999": 100.0})

    assert refused(prompts=prompts, n=n).message == message


def out_of_range(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check_numbers(ChatCompletionRequest(messages=[], **fields))
    error = caught.value
    assert (error.status, error.code) == (400, "invalid_value")
    return error


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("temperature", NAN, "must be a finite number"),
        ("min_p", INF, "must be a finite number"),
        ("length_penalty", -INF, "must be a finite number"),
        ("top_k", 2**31, "must be from -2147483648 to 2147483647"),
        ("min_tokens", 2**63, "must be from -2147483648 to 2147483647"),
        ("max_tokens", "18446744073709551616", "must be from -2147483648 to 2147483647"),
    ],
)
def test_number_out_of_bounds_is_refused_with_its_bound(name: str, value: Any, bound: str) -> None:
    error = out_of_range(**{name: value})

    assert error.param == name
    assert error.message == f"{name} = {value}: {bound}"


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


def test_every_wrong_token_is_named() -> None:
    biased = refused(logit_bias={"5": 1.0, "sea": 1.0, "1000": 1.0})
    listed = refused(stop_token_ids=[1001, 5, -1])
    endless = refused(logit_bias={"5": INF, "6": 1.0, "7": -INF})

    assert biased.message == "logit_bias = ['sea', '1000']: keys must be token ids from 0 to 999"
    assert listed.message == "stop_token_ids = [1001, -1]: token ids must be from 0 to 999"
    assert endless.message == "logit_bias = {'5': inf, '7': -inf}: must be finite numbers"


integers = st.one_of(
    st.integers(), *(st.integers(bound - 2, bound + 2) for bound in (-(2**63), -(2**31), 2**31, 2**63, 2**64))
)


@given(integers)
def test_the_core_gets_only_integers_that_fit(value: int) -> None:
    def passes(**fields: Any) -> bool:
        try:
            check_numbers(ChatCompletionRequest(messages=[{"role": "user", "content": "a"}], **fields))
        except ApiError:
            return False
        return True

    assert passes(top_k=value) == (-(2**31) <= value < 2**31)
    assert passes(vllm_xargs={"a": [value]}) == (-(2**63) <= value < 2**64)
    if -(2**63) <= value < 2**63:
        assert passes(seed=value)


prompts = st.one_of(
    st.text(),
    st.lists(st.integers(-3, VOCABULARY + 3)),
    st.lists(st.text(), min_size=1),
    st.lists(st.lists(st.integers(-3, VOCABULARY + 3)), min_size=1),
)


@given(prompts)
def test_prompts_are_counted_and_their_tokens_are_the_vocabularys(value: Any) -> None:
    items = [value] if isinstance(value, str) else value
    tokens = [token for item in items for token in (item if isinstance(item, list) else [item])]
    if not all(isinstance(token, str) or 0 <= token < VOCABULARY for token in tokens):
        with pytest.raises(ApiError, match=r"^prompt = .*token ids must be from 0 to 999"):
            check_token_ids("prompt", value, VOCABULARY)
        return
    single = isinstance(value, str) or (bool(value) and isinstance(value[0], int))

    assert check_token_ids("prompt", value, VOCABULARY) == (1 if single else len(value))


TOKENIZER = SimpleNamespace(max_chars_per_token=4)


@pytest.mark.parametrize("text", ["a" * 33, ["b", "a" * 33]])
def test_text_beyond_context_is_refused_before_tokenization(text: object) -> None:
    for fits in ("a" * 32, ["a" * 32, "b"], [1] * 1000, None):
        check_characters("prompt", fits, 8, TOKENIZER)

    with pytest.raises(ApiError, match="33 characters, and the model's context length is 8 tokens") as caught:
        check_characters("prompt", text, 8, TOKENIZER)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


def params(**fields: Any) -> Any:
    made = SamplingParams(**{name: value for name, value in fields.items() if name != "bad"})
    return SimpleNamespace(
        allowed_token_ids=made.allowed_token_ids,
        logit_bias=made.logit_bias,
        min_tokens=made.min_tokens,
        all_stop_token_ids=made.all_stop_token_ids,
        bad_words_token_ids=fields.get("bad"),
    )


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"allowed_token_ids": list(range(1025))}, "allowed_token_ids"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias"),
        ({"stop_token_ids": list(range(129)), "min_tokens": 1}, "stop_token_ids"),
        ({"bad": [[5] * 1000, [5] * 25]}, "bad_words"),
    ],
)
def test_lists_that_would_end_a_gpus_engine_core_are_refused(fields: dict[str, Any], parameter: str) -> None:
    with pytest.raises(VLLMValidationError, match="at most") as caught:
        check_list_lengths(params(**fields))
    assert caught.value.parameter == parameter


def test_the_bounds_of_lists_are_those_of_vllms_model_runner() -> None:
    from vllm.v1.worker.gpu.sample import logit_bias

    check_list_lengths(params(allowed_token_ids=list(range(logit_bias.MAX_NUM_ALLOWED_TOKEN_IDS))))
    check_list_lengths(params(logit_bias=dict.fromkeys(range(logit_bias.MAX_NUM_LOGIT_BIAS_TOKENS), 1.0)))
    check_list_lengths(params(stop_token_ids=list(range(1000)), bad=[[5] * 1000, [5] * 24]))
    stops = list(range(logit_bias.MAX_NUM_STOP_TOKEN_IDS))
    check_list_lengths(params(stop_token_ids=stops, min_tokens=1))


class PackingCore(StubEngineCore):
    """Packs each sequence as vLLM's client of the core does, and loses those after the first `takes`."""

    def __init__(self) -> None:
        super().__init__()
        self.takes = 0
        self.aborted: list[str] = []
        self._encoder = MsgpackEncoder()

    async def add_request_async(self, request: Any) -> None:
        if len(self.requests) >= self.takes:
            request.priority = 2**64
        self._encoder.encode(request)
        await super().add_request_async(request)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self.aborted += request_ids


async def failed(client: LocalEngine, request: EngineCall) -> bool:
    """Whether the answer says that the request cannot be sent, before or within its stream."""
    try:
        async with client.call(request) as reply:
            assert reply.stream is not None
            chunks = [chunk async for chunk in reply.stream]
            return any(chunk.startswith(b"event: error") and b"cannot be sent" in chunk for chunk in chunks)
    except ApiError as error:
        return error.status == 400 and "cannot be sent this request" in error.message


BODIES: list[tuple[Operation, dict[str, Any], int]] = [
    ("chat_completions", {"messages": [{"role": "user", "content": "sea"}]}, 1),
    ("chat_completions", {"messages": [{"role": "user", "content": "sea"}], "n": 3}, 3),
    ("completions", {"prompt": "sea"}, 1),
    ("completions", {"prompt": ["sea", "tide", "ebb"]}, 3),
    ("generate", {"prompt": "sea"}, 1),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_sequence_that_cannot_be_sent_is_refused_and_forgotten(stream: bool) -> None:
    core = PackingCore()
    core.most_steps = 0
    cases = [(operation, body, takes) for operation, body, count in BODIES for takes in range(count)]
    async with front_end(core) as (serving, client):
        processor = serving.engine.output_processor
        for operation, body, core.takes in cases:
            core.requests.clear()
            core.aborted.clear()
            request = engine_call(
                operation, json.dumps({"max_tokens": 2, "stream": stream, **body}).encode(), "r"
            )
            assert await failed(client, request)

            for _ in range(20):  # vLLM cancels the other prompts' tasks, which then end one by one
                await asyncio.sleep(0)
            assert processor.request_states == {}
            assert processor.parent_requests == {}
            assert {request.request_id for request in core.requests} <= set(core.aborted)
