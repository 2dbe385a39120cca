"""`/generate` on one engine: every token an event of its own, with the time it took."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from tokenizers.decoders import DecodeStream
from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import DONE, ApiError
from serve_app.api.generate import GenerateRequest
from serve_app.engine.bounds import check_characters, reject
from serve_app.engine.request_record import latency_figures

_encode = msgspec.json.Encoder().encode


class TokenTexts:
    """Splits a generation's text into the part each token adds.

    vLLM may merge the tokens of several steps when the reader lags, and hands out their text in one
    piece. A token that ends in the middle of a character adds nothing; the one that completes it
    adds the whole character.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._fast: Any = getattr(tokenizer, "_tokenizer", None)
        self._stream = DecodeStream(skip_special_tokens=True) if self._fast is not None else None

    def split(self, token_ids: list[int], text: str) -> list[str]:
        """One string a token. Without a fast tokenizer the last one carries the whole `text`."""
        if self._stream is None:
            return [""] * (len(token_ids) - 1) + [text] if token_ids else []
        return [self._stream.step(self._fast, token) or "" for token in token_ids]


class GenerateOperation:
    """Runs `/generate` requests on an engine that can generate."""

    def __init__(self, engine: AsyncLLM, model: str) -> None:
        self._engine = engine
        self._model = model

    async def run(self, call: EngineRequest) -> EngineReply | AsyncIterator[bytes]:
        """A reply with the text and timings, or the event frames of a stream."""
        if "generate" not in await self._engine.get_supported_tasks():
            raise ApiError(
                400, "This model does not generate text.", param="model", code="unsupported_feature"
            )
        request = GenerateRequest.model_validate_json(call.body)
        outputs = await self._start(request, call)
        if request.stream:
            return self._frames(outputs, replayed=bool(call.continuation and any(call.continuation.tokens)))
        return await self._whole(call, outputs)

    async def _start(self, request: GenerateRequest, call: EngineRequest) -> AsyncIterator[RequestOutput]:
        limit = self._engine.model_config.max_model_len
        tokenizer = self._engine.get_tokenizer()
        check_characters("prompt", request.prompt, limit, tokenizer)
        tokens = await asyncio.to_thread(tokenizer.encode, request.prompt)
        if len(tokens) >= limit:
            raise ApiError(
                400,
                f"prompt: {len(tokens)} tokens, and the model's context length is {limit} with at least "
                "one of them for the answer",
                param="prompt",
                code="context_length_exceeded",
            )
        room = limit - len(tokens)
        max_tokens = request.max_tokens
        if "max_tokens" not in request.model_fields_set:
            max_tokens = min(max_tokens, room)
        if max_tokens > room:
            raise reject(
                "max_tokens", request.max_tokens, f"the prompt leaves room for {room} of {limit} tokens"
            )
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=request.temperature,
            output_kind=RequestOutputKind.DELTA,
        )
        outputs: AsyncIterator[RequestOutput] = self._engine.generate(
            tokens_input(tokens),
            params,
            f"gen-{call.request_id}",
            trace_headers=None if call.trace is None else call.trace.fields(),
        )
        return outputs

    async def _frames(
        self, outputs: AsyncIterator[RequestOutput], *, replayed: bool = False
    ) -> AsyncIterator[bytes]:
        """`replayed`: the first output has no time of its own. The one behind it has the time of both."""
        texts = TokenTexts(self._engine.get_tokenizer())
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
            for token, text in zip(tokens, texts.split(tokens, delta.text), strict=True):
                frames.append(
                    b'data: {"token":%b,"token_id":%d,"%b":%b}\n\n'
                    % (_encode(text), token, label, _encode(each_ms))
                )
                label = b"step_ms"
            yield b"".join(frames)
        yield DONE

    async def _whole(self, call: EngineRequest, outputs: AsyncIterator[RequestOutput]) -> EngineReply:
        text, tokens, prompt_tokens, reason, first = "", [], 0, "stop", 0.0
        async for output in outputs:
            first = first or time.perf_counter()
            prompt_tokens = prompt_tokens or len(output.prompt_token_ids or ())
            delta = output.outputs[0]
            text += delta.text
            tokens += list(delta.token_ids)
            reason = delta.finish_reason or reason
        document = {
            "model": self._model,
            "text": text,
            "token_ids": tokens,
            "finish_reason": reason,
            "prompt_tokens": prompt_tokens,
            "timings": latency_figures(call, first, len(tokens)),
        }
        return EngineReply(200, _encode(document))
