"""vLLM's handlers of the OpenAI API for one engine, behind Tideserve's bounds."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.datastructures import State
from starlette.requests import Request
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import invalid_field, unsupported_feature
from serve_app.engine.api_errors import from_response
from serve_app.engine.engine_call import EngineCall, follow_calls
from serve_app.engine.media import check_media, guard_media, keep_media_apart, keyed
from serve_app.engine.number_bounds import check_characters, check_sampling, check_token_ids, guard_intake
from serve_app.engine.plain_stream import prefer_plain_streams
from serve_app.engine.request_body import RequestModel, name_field_in_errors
from serve_app.engine.sequence_lanes import SequenceLanes
from serve_app.patches.vllm import Method, keep_chat_errors, raise_generation_errors, read_speech, wrap_method
from serve_app.patches.vllm_compat import OWN_STREAMS

CHAT = RequestModel(
    ChatCompletionRequest, ignored=("functions", "function_call", "audio", "web_search_options")
)
COMPLETION = RequestModel(CompletionRequest)
TOKENIZE = RequestModel(TokenizeRequest)
_DETOKENIZE = RequestModel(DetokenizeRequest)

ReplyOrFrames = EngineReply | AsyncIterator[str | bytes]
"""A complete reply, or the frames of a stream from vLLM."""


@dataclass(frozen=True, slots=True)
class Serving:
    """vLLM's handlers of one engine, by the names of vLLM's API server."""

    engine: AsyncLLM
    state: State
    max_sequences: int = 1
    """Bound on `n` times the number of prompts of one request."""

    @classmethod
    async def mount(
        cls, engine: AsyncLLM, namespace: Namespace, lanes: SequenceLanes | None = None
    ) -> Serving:
        """Build the handlers of all tasks that the engine's model supports, and fill `lanes` from now on."""
        guard_media()
        state = State()
        await init_app_state(engine, state, namespace, await engine.get_supported_tasks())
        chat = getattr(state, "openai_serving_chat", None)
        if chat is not None and OWN_STREAMS:
            prefer_plain_streams(chat)
        if (responses := getattr(state, "openai_serving_responses", None)) is not None:
            raise_generation_errors(responses)
        if (messages := getattr(state, "anthropic_serving_messages", None)) is not None:
            # vLLM knows the cached tokens of every prompt, and reports them only if it is asked to.
            messages.enable_prompt_tokens_details = True
            keep_chat_errors(messages)
        for name in ("openai_serving_transcription", "openai_serving_translation"):
            if (speech := getattr(state, name, None)) is not None:
                read_speech(speech)
        follow_calls(engine, lanes or SequenceLanes())
        follow_aliases(state.openai_serving_models)
        guard_intake(engine)
        keep_media_apart(engine.renderer)
        return cls(engine, state)

    @property
    def adapters(self) -> dict[str, LoRARequest]:
        """The loaded adapters by name, in which the handlers look for the `model` of a request."""
        registry: dict[str, LoRARequest] = self.state.openai_serving_models.lora_requests
        return registry

    @property
    def vocabulary(self) -> int:
        """The number of the model's token ids."""
        return int(self.engine.model_config.get_vocab_size())

    def handler(self, name: str, feature: str) -> Any:
        """Return vLLM's handler `name`. Raises ApiError 400 if the model does not support `feature`."""
        found = getattr(self.state, name, None)
        if found is None:
            raise unsupported_feature(feature)
        return found

    def parse(self, call: EngineCall, model: RequestModel, body: bytes | None = None) -> Any:
        """Return the request in `body`, by default the call's, with the salt of the caller's prefix cache.

        Raises:
            ApiError: 400 for an invalid field, or media that are not allowed.
        """
        document = call.message.body if body is None else body
        request = model.parse(document, self.engine.model_config)
        check_media(document, self.engine.model_config)
        if "cache_salt" in type(request).model_fields:
            request.cache_salt = _cache_salt(call, request.cache_salt)
        if (
            call.message.adapter is None
            and call.message.alias
            and getattr(request, "model", None) == call.message.alias
        ):
            # vLLM may have an adapter of this name.
            request.model = self.engine.model_config.served_model_name
        return request


def follow_aliases(models: Any) -> None:
    """Have vLLM's handlers accept and answer the name by which the client of a call asked for the model.

    Args:
        models: vLLM's `OpenAIServingModels` of the engine.
    """

    def alias() -> str:
        call = EngineCall.current()
        return "" if call is None else call.message.alias

    def accept(is_base: Method) -> Method:
        return lambda name: is_base(name) or (name != "" and name == alias())

    def answer_as(name_of: Method) -> Method:
        return lambda adapter=None: (not adapter and alias()) or name_of(adapter)

    wrap_method(models.registry, "is_base_model", accept)
    wrap_method(models, "model_name", answer_as)


async def chat(serving: Serving, call: EngineCall) -> ReplyOrFrames:
    """Run a chat completion. Returns a reply, or the frames of a stream."""
    handler = serving.handler("openai_serving_chat", "chat completions")
    request = serving.parse(call, CHAT)
    check_sampling(request, 1, serving.max_sequences, serving.vocabulary)
    return await ask(handler.create_chat_completion, request, call)


async def complete(serving: Serving, call: EngineCall) -> ReplyOrFrames:
    """Run a text completion of one or more prompts. Returns a reply, or the frames of a stream."""
    handler = serving.handler("openai_serving_completion", "completions")
    request = serving.parse(call, COMPLETION)
    prompts = check_token_ids("prompt", request.prompt, serving.vocabulary)
    check_sampling(request, prompts, serving.max_sequences, serving.vocabulary)
    return await ask(handler.create_completion, request, call)


async def tokenize(serving: Serving, call: EngineCall) -> ReplyOrFrames:
    """Convert text or messages to token ids."""
    handler = serving.handler("serving_tokenization", "tokenization")
    request = serving.parse(call, TOKENIZE)
    # vLLM bounds prompts only if they generate.
    messages = getattr(request, "messages", None)
    text = request.prompt if messages is None else text_of(messages)
    limit = serving.engine.model_config.max_model_len
    check_characters(
        "prompt" if messages is None else "messages", text, limit, serving.engine.get_tokenizer()
    )
    return await ask(handler.create_tokenize, request, call)


async def detokenize(serving: Serving, call: EngineCall) -> ReplyOrFrames:
    """Convert token ids to text."""
    handler = serving.handler("serving_tokenization", "tokenization")
    request = serving.parse(call, _DETOKENIZE)
    check_token_ids("tokens", request.tokens, serving.vocabulary)
    limit = serving.engine.model_config.max_model_len
    if len(request.tokens) > limit:
        why = f"{len(request.tokens)} tokens, and the model's context length is {limit}"
        raise invalid_field("tokens", why, "context_length_exceeded")
    return await ask(handler.create_detokenize, request, call)


async def ask(handle: Method, request: Any, call: EngineCall, **written: Any) -> ReplyOrFrames:
    """Have vLLM's handler answer a request. Returns a reply, or the frames of a stream.

    Args:
        written: How vLLM's server writes this answer: options of pydantic's `model_dump_json`.

    Raises:
        ApiError: the handler refuses the request.
    """
    with name_field_in_errors(request):
        answer = await handle(request, raw_request(call))
        if isinstance(answer, ErrorResponse):
            raise from_response(answer)
    if isinstance(answer, BaseModel):
        return EngineReply(200, answer.model_dump_json(**written).encode())
    stream: AsyncIterator[str | bytes] = answer
    return stream


def raw_request(call: EngineCall) -> Request:
    """Return an HTTP request for vLLM's handlers, with the request id and the trace headers."""
    headers = [(b"x-request-id", call.request_id.encode("latin-1"))]
    if call.trace is not None:
        headers += call.trace.headers()
    return Request({"type": "http", "method": "POST", "headers": headers})


def _cache_salt(call: EngineCall, own: str | None) -> str | None:
    """Return the salt of a prompt's prefix cache: the API key's salt, combined with the client's `own`."""
    if not call.message.cache_salt or own is None:
        return call.message.cache_salt or own
    return keyed(call.message.cache_salt, own)


def text_of(messages: list[Any]) -> str:
    """Return the text of all chat messages, joined."""
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in (*contents, *parts)]
    return "".join(text for text in texts if isinstance(text, str))
