"""vLLM's front end around a fake of the engine core, or with a real one."""

import asyncio
import atexit
import gc
import multiprocessing.spawn
import os
import shutil
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from multiprocessing import resource_tracker
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig
from vllm.entrypoints.generate.base import protocol as structural_tag_module
from vllm.envs import disable_envs_cache
from vllm.parser.parser_manager import ParserManager
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
)
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.metrics.stats import PrefillStats

from serve_app import env
from serve_app.engine.arguments import engine_config, vllm_namespace
from serve_app.engine.chat_operations import Serving
from serve_app.engine.continuing_core import delivered_count
from serve_app.engine.grammar.guard import guard_grammars
from serve_app.engine.local_client import LocalEngine
from serve_app.settings.tree import ModelSettings
from serve_app.zygote.python import start_zygote

MODEL = {"name": "tide", "device": "cpu", "enforce_eager": True, "max_model_len": 256}
TOKEN = 300
"""The token that a stub core generates again and again, unless it has others as its `answer`."""


class StubEngineCore:
    """Answers a request with its `max_tokens` tokens, or with an embedding. It is no process."""

    engine_ranks_managed = (0,)

    def __init__(self, tasks: tuple[str, ...] = ("generate",)) -> None:
        self.tasks = tasks
        self.requests: list[Any] = []
        self.answer = [TOKEN]
        self.tokens_a_step = 1
        self.cached_tokens = 0
        """Of each prompt."""
        self.most_steps: int | None = None
        """The steps of a request after which it stalls; None if it never does."""
        self.stopped_within_s: float | None = None
        self.resources = Namespace(engine_dead=False)
        self._steps: asyncio.Queue[EngineCoreOutputs] = asyncio.Queue()

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return self.tasks

    async def add_request_async(self, request: Any) -> None:
        self.requests.append(request)
        pooled = request.pooling_params is not None
        outputs = delivered_count(request.sampling_params)
        count = 0 if pooled else max(1, request.sampling_params.max_tokens - outputs)
        tokens = [self.answer[number % len(self.answer)] for number in range(count)]
        steps = [tokens[at : at + self.tokens_a_step] for at in range(0, count, self.tokens_a_step)] or [[]]
        self.put_steps(request, steps, FinishReason.STOP if pooled else FinishReason.LENGTH)

    def put_steps(self, request: Any, steps: list[list[int]], reason: FinishReason) -> None:
        """Have the front end get the tokens of each step, as far as the request gets without a stall."""
        pooled = request.pooling_params is not None
        prefill = PrefillStats()
        prefill.set(len(request.prompt_token_ids), self.cached_tokens, 0)
        events = [
            EngineCoreEvent.new_event(kind)
            for kind in (EngineCoreEventType.QUEUED, EngineCoreEventType.SCHEDULED)
        ]
        for number, step in enumerate(steps[: self.most_steps]):
            output = EngineCoreOutput(
                request.request_id,
                step,
                pooling_output=torch.tensor([0.6, 0.8]) if pooled else None,
                finish_reason=reason if number == len(steps) - 1 else None,
                events=events if number == 0 else None,
                prefill_stats=prefill if number == 0 else None,
            )
            self._steps.put_nowait(EngineCoreOutputs(outputs=[output]))

    async def get_output_async(self) -> EngineCoreOutputs:
        return await self._steps.get()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self.aborted = request_ids

    def shutdown(self, timeout: float | None = None) -> None:
        self.stopped_within_s = timeout


def put_in_place(core: StubEngineCore, monkeypatch: Any) -> None:
    """Have vLLM's front end take `core` where it would start an engine core's process."""
    monkeypatch.setattr(EngineCoreClient, "make_async_mp_client", lambda **_: core)


@contextmanager
def vllm_restored() -> Iterator[None]:
    """Undo what a start does for good, to functions of vLLM, to its variables and to the collector."""
    threshold = gc.get_threshold()
    with pytest.MonkeyPatch.context() as monkeypatch:
        for owner, name in (
            (SamplingParams, "_validate_structured_outputs"),
            (structural_tag_module, "validate_structural_tag_payload"),
        ):
            monkeypatch.setattr(owner, name, getattr(owner, name))
        yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    disable_envs_cache()


def configured(**model: Any) -> tuple[ModelSettings, Namespace, VllmConfig]:
    """The settings of the embedded model, and vLLM's arguments and configuration for it."""
    settings = ModelSettings.model_validate(MODEL | model)
    namespace = vllm_namespace(settings)
    return settings, namespace, engine_config(namespace)


def use_parser(serving: Serving, **parser: str) -> None:
    """Have all handlers read the model's text with a parser, by its kind."""
    state: Any = serving.state
    tokenizer = state.openai_serving_chat.renderer.tokenizer
    found = ParserManager.get_parser(enable_auto_tools=True, tokenizer=tokenizer, **parser)
    for handler in (state.openai_serving_chat, state.anthropic_serving_messages):
        handler.parser_cls = handler.online_renderer.parser = found
    state.openai_serving_responses.parser = found


@asynccontextmanager
async def front_end(core: StubEngineCore, **model: Any) -> AsyncIterator[tuple[Serving, LocalEngine]]:
    """vLLM's handlers and our client around `core`."""
    settings, namespace, config = configured(**model)
    with pytest.MonkeyPatch.context() as monkeypatch:
        put_in_place(core, monkeypatch)
        llm = AsyncLLM.from_vllm_config(config, disable_log_stats=False)
    try:
        serving = await Serving.mount(llm, namespace)
        yield serving, LocalEngine(serving, settings, lambda _: None)
    finally:
        llm.shutdown()


@asynccontextmanager
async def real_engine(**model: Any) -> AsyncIterator[LocalEngine]:
    """The embedded model in a real engine core, with a prefix cache and a compile sandbox.

    In bfloat16, a processor with AMX rounds a prefill otherwise than single steps, and tokens tie often. So a
    stream that another engine continues would go on with other tokens.
    """
    settings, namespace, config = configured(**{"max_model_len": 512, "dtype": "float32", **model})
    async with real_serving(namespace, config) as serving:
        local = LocalEngine(serving, settings, lambda _: None)
        guard = guard_grammars(serving.engine, settings.structured_output)
        yield local
        guard.stop()


@asynccontextmanager
async def real_serving(
    namespace: Namespace, config: VllmConfig, zygote: str | None = None
) -> AsyncIterator[Serving]:
    """vLLM's handlers around a real engine core, a fork of the zygote at this socket."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv(env.ZYGOTE_SOCKET, zygote or zygote_of_cores())
        executable = os.fsdecode(multiprocessing.spawn.get_executable())
        multiprocessing.set_executable(env.PYTHON)
        llm = AsyncLLM.from_vllm_config(config, disable_log_stats=False)
        multiprocessing.set_executable(executable)
    with vllm_restored():
        yield await Serving.mount(llm, namespace)
    llm.shutdown(timeout=0)  # a core that has torn everything down takes more than 5 s to exit
    await asyncio.sleep(0)  # the sockets are closed by the loop
    llm.engine_core.resources.ctx.destroy(linger=0)


@cache
def zygote_of_cores(*first: str) -> str:
    """The socket of a zygote, which forks every engine core of this process: to import vLLM takes 8 s.

    Before that, the zygote imports the modules `first`.
    """
    resource_tracker.ensure_running()  # not as a fork
    folder = tempfile.mkdtemp(prefix="ts-")
    socket = os.path.join(folder, "zygote")
    imports = [*first, "serve_app.engine.warm_imports:import_core"]
    zygote = start_zygote(socket, os.getpid(), os.environ, subprocess.DEVNULL, imports)
    while not os.path.exists(socket):
        assert zygote.poll() is None
        time.sleep(0.01)

    def end() -> None:
        zygote.kill()
        zygote.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    return socket
