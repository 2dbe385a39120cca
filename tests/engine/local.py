"""A `LocalEngine` around a fake of vLLM's chat handler, and the streams it answers with."""

import asyncio
import time
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.v1.metrics.stats import RequestStateStats

from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError
from serve_app.engine.chat_operations import Serving
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.local_client import LocalEngine
from serve_app.settings.tree import ModelSettings
from serve_app.wire.request_line import RequestLine
from tests.engine.calls import engine_call

CHAT = b'{"messages":[{"role":"user","content":"sea"}]}'
TOKEN = 'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n'
DONE = "data: [DONE]\n\n"
FAILED = 'data: {"error": {"message": "gone wrong", "type": "x", "code": 500, "param": null}}\n\n'

ErrorInfo: Any = ErrorResponse.model_fields["error"].annotation
DOCUMENT = ErrorInfo(message="any document", type="x", code=1)


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


class FakeLog:
    """A request log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[RequestLine] = []

    def add(self, line: RequestLine) -> None:
        self.lines.append(line)


class Local:
    """A local engine whose chat handler answers `result`, and what it reported."""

    def __init__(self, result: Any, errored: bool = False) -> None:
        self.handled = 0
        self.errors: list[ApiError] = []

        async def handler(request: Any, raw: Any) -> Any:
            self.handled += 1
            stream = EngineCall.current()
            assert stream is not None
            stats = RequestStateStats(num_generation_tokens=3)
            stream.sequences.append(SimpleNamespace(prompt_len=8, num_cached_tokens=0, stats=stats))
            if isinstance(result, Exception):
                raise result
            return result() if isinstance(result, FunctionType) else result

        self.llm = SimpleNamespace(
            errored=errored,
            model_config=SimpleNamespace(
                get_vocab_size=lambda: 1000, is_multimodal_model=False, enable_prompt_embeds=False
            ),
        )
        handlers: Any = SimpleNamespace(openai_serving_chat=SimpleNamespace(create_chat_completion=handler))
        self.client = LocalEngine(Serving(self.llm, handlers), ModelSettings(name="tide"), self.errors.append)
        self.log = FakeLog()
        self.client.request_log = self.log  # type: ignore[assignment]

    def call(self, **changes: Any) -> Any:
        self.asked = engine_call("chat_completions", CHAT, "r-1", time.perf_counter() - 0.5, **changes)
        return self.client.call(self.asked)

    async def reply(self) -> EngineReply:
        async with self.call() as reply:
            assert isinstance(reply, EngineReply)
            return reply

    async def streamed(self) -> list[bytes]:
        async with self.call() as reply:
            return [chunk async for chunk in reply.stream]

    async def refusal(self) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await self.reply()
        return caught.value

    @property
    def logged(self) -> list[tuple[int | None, str]]:
        """The status and the outcome of each line of the log."""
        return [(line.status, line.outcome) for line in self.log.lines]
