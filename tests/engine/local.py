"""A `LocalEngine` around stubs of vLLM's handlers, and the streams they answer with."""

import asyncio
import time
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
from vllm.v1.metrics.stats import RequestStateStats

from serve_app.api.engine_client import EngineReply, EngineRequest, Operation
from serve_app.api.errors import ApiError
from serve_app.engine import request_record
from serve_app.engine.local_client import LocalEngine
from serve_app.engine.operations import Serving
from serve_app.patches.vllm_compat import ErrorResponse
from serve_app.settings import ModelSettings
from serve_app.wire.request_line import RequestLine

CHAT = b'{"messages":[{"role":"user","content":"sea"}]}'
TOKEN = 'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n'
DONE = "data: [DONE]\n\n"
FAILED = 'data: {"error": {"message": "gone wrong", "type": "x", "code": 500, "param": null}}\n\n'


ErrorInfo: Any = ErrorResponse.model_fields["error"].annotation


class Frames:
    """A stream as vLLM's handlers return it: yields, raises, stalls, and notes that it was closed."""

    def __init__(self, *frames: str | Exception, stalls: bool = False) -> None:
        self._frames = list(frames)
        self._stalls = stalls
        self.closed = False

    def __aiter__(self) -> "Frames":
        return self

    async def __anext__(self) -> str:
        if not self._frames:
            if self._stalls:
                await asyncio.Event().wait()
            raise StopAsyncIteration
        frame = self._frames.pop(0)
        if isinstance(frame, Exception):
            raise frame
        return frame

    async def aclose(self) -> None:
        self.closed = True


class Log:
    """A request log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[RequestLine] = []

    def add(self, line: RequestLine) -> None:
        self.lines.append(line)


def begun() -> SimpleNamespace:
    """The state of a sequence, as vLLM keeps it."""
    stats = RequestStateStats(num_generation_tokens=3)
    return SimpleNamespace(prompt_len=8, num_cached_tokens=0, stats=stats)


class Local:
    """A local engine whose handlers all answer `result`, and what it reported."""

    def __init__(self, result: Any, errored: bool = False) -> None:
        self.requests: list[Any] = []
        self.headers: list[str] = []
        self.errors: list[ApiError] = []

        async def handler(request: Any, raw: Any) -> Any:
            self.requests.append(request)
            self.headers.append(raw.headers["x-request-id"])
            record = request_record._current.get()
            assert record is not None
            record.sequences.append(begun())
            if isinstance(result, Exception):
                raise result
            return result() if isinstance(result, FunctionType) else result

        handlers = SimpleNamespace(
            openai_serving_chat=SimpleNamespace(create_chat_completion=handler),
            openai_serving_completion=SimpleNamespace(create_completion=handler),
            openai_serving_tokenization=None,
            serving_embedding=handler,
            serving_tokenization=SimpleNamespace(create_tokenize=handler, create_detokenize=handler),
        )
        self.llm = SimpleNamespace(
            errored=errored,
            model_config=SimpleNamespace(
                get_vocab_size=lambda: 1000,
                max_model_len=8,
                is_multimodal_model=False,
                enable_prompt_embeds=False,
            ),
            get_tokenizer=lambda: SimpleNamespace(max_chars_per_token=4),
        )
        self.handlers = handlers
        self.client = LocalEngine(
            Serving(self.llm, handlers),
            ModelSettings(name="tide"),
            self.errors.append,
        )
        self.log = Log()
        self.client.request_log = self.log  # type: ignore[assignment]

    def call(self, operation: Operation = "chat_completions", body: bytes = CHAT, **changes: Any) -> Any:
        self.asked = EngineRequest(operation, body, "r-1", time.perf_counter() - 0.5, **changes)
        return self.client.call(self.asked)

    async def reply(self, operation: Operation = "chat_completions", body: bytes = CHAT) -> EngineReply:
        async with self.call(operation, body) as reply:
            assert isinstance(reply, EngineReply)
            return reply

    async def streamed(self) -> list[bytes]:
        async with self.call() as reply:
            return [chunk async for chunk in reply.stream]

    async def refusal(self, operation: Operation = "chat_completions", body: bytes = CHAT) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await self.reply(operation, body)
        return caught.value
