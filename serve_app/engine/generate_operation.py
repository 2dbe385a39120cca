"""`/generate` on one engine: one event per token, with the token's time."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import DONE, invalid_field, invalid_value, unsupported_feature
from serve_app.api.generate_body import GenerateRequest
from serve_app.engine.chat_operations import Serving
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.number_bounds import check_characters

_encode = msgspec.json.Encoder().encode


class TokenTexts:
    """Splits a generation's text into one piece per token.

    If the reader lags, vLLM merges the tokens of several steps and their text. So vLLM's detokenizer runs
    here instead of in the engine, token by token. A token that ends inside a character adds no text. The
    token that completes the character adds the whole character.

    Args:
        prompt: The prompt's token ids, which determine the space before the first word.
        request_id: The request's name in vLLM's log.
    """

    def __init__(self, tokenizer: Any, params: SamplingParams, prompt: list[int], request_id: str) -> None:
        request = SimpleNamespace(
            request_id=request_id, sampling_params=params, prompt_token_ids=prompt, prompt_embeds=None
        )
        self._detokenizer: Any = IncrementalDetokenizer.from_new_request(tokenizer, request)

    def split(self, token_ids: list[int], *, stopped: bool = False) -> list[str]:
        """Return one string per token. If `stopped`, the last token ended the generation and has no text."""
        texts, detokenizer, last = [], self._detokenizer, len(token_ids) - 1
        for index, token in enumerate(token_ids):
            detokenizer.update([token], stopped and index == last)
            texts.append(detokenizer.get_next_output_text(False, True))
        return texts


async def generate(serving: Serving, call: EngineCall) -> EngineReply | AsyncIterator[bytes]:
    """Return a reply with text and timings, or the event frames of a stream."""
    if "generate" not in await serving.engine.get_supported_tasks():
        raise unsupported_feature("text generation")
    request = GenerateRequest.model_validate_json(call.message.body)
    outputs, texts = await _start(serving, request, call)
    if request.stream:
        replayed = bool(call.message.continuation and any(call.message.continuation.tokens))
        return _frames(outputs, texts, replayed=replayed)
    return await _whole(serving, call, outputs, texts)


async def _start(
    serving: Serving, request: GenerateRequest, call: EngineCall
) -> tuple[AsyncIterator[RequestOutput], TokenTexts]:
    engine = serving.engine
    limit = engine.model_config.max_model_len
    tokenizer = engine.get_tokenizer()
    check_characters("prompt", request.prompt, limit, tokenizer)
    # vLLM's renderer tokenizes in its own thread. Another thread would make a third copy of the tokenizer,
    # which blocks the event loop for 0.3 s with a vocabulary of 128,000.
    renderer = engine.renderer
    unbounded = replace(renderer.default_cmpl_tok_params, max_total_tokens=None)
    (prompt,) = await renderer.render_cmpl_async([{"prompt": request.prompt}], unbounded)
    if call.message.cache_salt:
        prompt["cache_salt"] = call.message.cache_salt
    tokens = prompt["prompt_token_ids"]
    if len(tokens) >= limit:
        why = f"{len(tokens)} tokens, and the model's context length is {limit} with at least one of them "
        raise invalid_field("prompt", f"{why}for the answer", "context_length_exceeded")
    left = limit - len(tokens)
    if request.max_tokens > left and "max_tokens" in request.model_fields_set:
        why = f"the prompt leaves room for {left} of {limit} tokens"
        raise invalid_value("max_tokens", request.max_tokens, why)
    params = SamplingParams(
        max_tokens=min(request.max_tokens, left),
        temperature=request.temperature,
        output_kind=RequestOutputKind.DELTA,
        detokenize=False,
    )
    request_id = f"gen-{call.request_id}"
    outputs: AsyncIterator[RequestOutput] = engine.generate(
        prompt,
        params,
        request_id,
        lora_request=serving.adapters.get(call.adapter_name),
        trace_headers=None if call.trace is None else call.trace.fields(),
    )
    return outputs, TokenTexts(tokenizer, params, tokens, request_id)


async def _frames(
    outputs: AsyncIterator[RequestOutput], texts: TokenTexts, *, replayed: bool = False
) -> AsyncIterator[bytes]:
    """Yield the event frames. If `replayed`, the second output carries the time of the first two."""
    before = time.perf_counter()
    label = b"prefill_time_ms"
    async for output in outputs:
        delta = output.outputs[0]
        tokens = list(delta.token_ids)
        if not tokens:
            continue
        now = time.perf_counter()
        each_ms = round((now - before) * 1e3 / len(tokens), 3)
        before, replayed = before if replayed else now, False
        frames = []
        parts = texts.split(tokens, stopped=delta.finish_reason == "stop")
        for token, text in zip(tokens, parts, strict=True):
            frames.append(
                b'data: {"token":%b,"token_id":%d,"%b":%b}\n\n'
                % (_encode(text), token, label, _encode(each_ms))
            )
            label = b"step_ms"
        yield b"".join(frames)
    yield DONE


async def _whole(
    serving: Serving, call: EngineCall, outputs: AsyncIterator[RequestOutput], texts: TokenTexts
) -> EngineReply:
    text, tokens, prompt_tokens, reason, first = "", [], 0, "stop", 0.0
    async for output in outputs:
        first = first or time.perf_counter()
        prompt_tokens = prompt_tokens or len(output.prompt_token_ids or ())
        delta = output.outputs[0]
        reason = delta.finish_reason or reason
        text += "".join(texts.split(list(delta.token_ids), stopped=delta.finish_reason == "stop"))
        tokens += list(delta.token_ids)
    document = {
        "model": serving.state.openai_serving_models.model_name(serving.adapters.get(call.adapter_name)),
        "text": text,
        "token_ids": tokens,
        "finish_reason": reason,
        "prompt_tokens": prompt_tokens,
        "timings": call.latency(first, len(tokens), time.perf_counter()),
    }
    return EngineReply(200, _encode(document))
