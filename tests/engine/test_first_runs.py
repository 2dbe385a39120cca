"""The kinds of requests that an engine has not run: which they are, and the warm-up that runs them.

A CPU engine with a model's settings for a GPU stands in for an engine on a GPU.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from serve_app.engine.first_runs import FirstRuns, kinds_of
from serve_app.engine.local_client import LocalEngine
from serve_app.settings.tree import ModelSettings
from tests.engine.calls import engine_call
from tests.engine.stub_engine_core import StubEngineCore, configured, front_end, real_serving

SAMPLED = {"top_p and top_k", "min_p", "logprobs", "penalties", "seed", "grammar"}
ON_GPU = ModelSettings(name="tide", device="gpu")


def sequence(adapter: Any = None, media: tuple[Any, ...] = (), **params: Any) -> Any:
    return SimpleNamespace(
        sampling_params=SamplingParams(**params), lora_request=adapter, mm_features=list(media)
    )


@pytest.mark.parametrize(
    ("request_", "kinds"),
    [
        (sequence(), set()),
        (sequence(temperature=0.7, max_tokens=5, stop=["x"]), set()),
        (sequence(top_p=0.9), {"top_p and top_k"}),
        (sequence(top_k=5), {"top_p and top_k"}),
        (sequence(top_p=0.9, temperature=0.0), set()),  # greedy: vLLM ignores it
        (sequence(min_p=0.1, seed=3), {"min_p", "seed"}),
        (sequence(logprobs=0), {"logprobs"}),
        (sequence(prompt_logprobs=1), {"logprobs"}),
        (sequence(repetition_penalty=1.2), {"penalties"}),
        (sequence(presence_penalty=0.1), {"penalties"}),
        (sequence(structured_outputs=StructuredOutputsParams(choice=["a"])), {"grammar"}),
        (sequence(adapter="pirate", media=("image",)), {"adapter", "media"}),
        (SimpleNamespace(sampling_params=None), set()),
    ],
)
def test_kinds_of_a_sequence(request_: Any, kinds: set[str]) -> None:
    assert kinds_of(request_) == kinds


async def test_warm_up_runs_each_kind_that_the_engine_can_run(tmp_path: Path) -> None:
    from tests.engine.tiny_models import vision_language_model

    settings, namespace, config = configured(
        model=vision_language_model(tmp_path), dtype="float32", kv_cache_memory_bytes=32 << 20
    )
    async with real_serving(namespace, config) as serving:
        first = FirstRuns(serving.engine, ON_GPU)
        assert first.left == {*SAMPLED, "media"}

        await first.warm_up(LocalEngine(serving, settings, lambda _: None))

        assert first.left == set()
        assert not first.under_way()


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ({}, SAMPLED),
        ({"lora": {}}, {*SAMPLED, "adapter"}),
        ({"task": "embed"}, set()),
        ({"device": "cpu"}, set()),
    ],
)
async def test_engines_differ_in_the_kinds_that_they_must_run(model: dict[str, Any], kinds: set[str]) -> None:
    async with front_end(StubEngineCore()) as (serving, _):
        settings = ModelSettings.model_validate({"name": "tide", "device": "gpu", **model})
        assert FirstRuns(serving.engine, settings).left == kinds


async def test_kind_has_run_once_a_sequence_of_it_has_decoded() -> None:
    core = StubEngineCore()
    async with front_end(core) as (serving, client):
        first = FirstRuns(serving.engine, ON_GPU)
        core.most_steps = 1  # the prefill; then nvcc compiles

        async def ask() -> None:
            body = json.dumps({"prompt": "sea", "max_tokens": 4, "top_p": 0.9, "temperature": 1}).encode()
            async with client.call(engine_call("completions", body, "r-1")):
                pass

        waiting = asyncio.create_task(ask())
        while not core.requests:
            await asyncio.sleep(0)
        assert first.under_way()
        assert "top_p and top_k" in first.left
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        while first.under_way():
            await asyncio.sleep(0.01)

        core.most_steps = None
        await ask()
        assert not first.under_way()
        assert first.left == SAMPLED - {"top_p and top_k"}


async def test_kind_that_the_engine_refuses_is_not_waited_for() -> None:
    async with front_end(StubEngineCore(), engine_args={"max_logprobs": 0}) as (serving, client):
        first = FirstRuns(serving.engine, ON_GPU)

        await first.warm_up(client)

        assert first.left == set()
