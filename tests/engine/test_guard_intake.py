"""Sequences that must not reach the engine core, or do not: vLLM's front end around a stub of the core."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.serial_utils import MsgpackEncoder

from serve_app.api.engine_client import EngineRequest, Operation
from serve_app.api.errors import ApiError
from serve_app.engine.local_client import LocalEngine
from serve_app.engine.operations import Serving
from tests.engine.stub_engine_core import StubEngineCore, configured, put_in_place


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


@pytest.fixture
async def core() -> PackingCore:
    return PackingCore()


@pytest.fixture
async def engine(core: PackingCore) -> AsyncIterator[AsyncLLM]:
    _, _, config = configured()
    with pytest.MonkeyPatch.context() as monkeypatch:
        put_in_place(core, monkeypatch)
        llm = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    yield llm
    llm.shutdown()


@pytest.fixture
async def client(engine: AsyncLLM) -> LocalEngine:
    settings, namespace, _ = configured()
    return LocalEngine(await Serving.mount(engine, namespace), settings, lambda _: None)


async def failed(client: LocalEngine, request: EngineRequest) -> bool:
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


@pytest.mark.parametrize(("operation", "body", "sequences"), BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_sequence_that_cannot_be_sent_is_refused_and_forgotten(
    engine: AsyncLLM,
    core: PackingCore,
    client: LocalEngine,
    operation: Operation,
    body: dict[str, Any],
    sequences: int,
    stream: bool,
) -> None:
    core.silent = True
    for core.takes in range(sequences):
        core.requests.clear()
        core.aborted.clear()
        request = EngineRequest(
            operation, json.dumps({"max_tokens": 2, "stream": stream, **body}).encode(), "r"
        )
        assert await failed(client, request)

        for _ in range(20):  # vLLM cancels the other prompts' tasks, which then end one by one
            await asyncio.sleep(0)
        assert engine.output_processor.request_states == {}
        assert engine.output_processor.parent_requests == {}
        assert {request.request_id for request in core.requests} <= set(core.aborted)
