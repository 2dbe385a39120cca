"""What GPUs run, on the CPU: vLLM's second model runner under the asynchronous scheduler.

Kernels run as Python in Triton's interpreter, some 0.1 s per step, so streams are short.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serve_app.api.engine_client import Operation
from serve_app.engine.local_client import LocalEngine
from serve_app.settings.model_names import EMBEDDED_ADAPTER, Adapter
from tests.engine.second_runner import install_triton, runner_of, second_runner_engine
from tests.engine.streams import OSLO, asked, at_each, chat, continued, differences, hear, said, strict
from tests.engine.test_lanes import answer

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PLACES = 4
SEA = "Write a story about the sea."
# Nearly greedy: vLLM refuses several greedy sequences. The interpreter cannot run the kernel of top_p.
NEARLY_GREEDY = {"temperature": 0.01, "top_p": 1.0, "seed": 7}
PIRATE = Adapter("pirate", EMBEDDED_ADAPTER)
RANKS = {"device": "gpu", "accelerator_type": None, "kv_cache_memory_bytes": 64 << 20}


def short(**fields: Any) -> tuple[Operation, dict[str, Any]]:
    return chat(SEA, **{"max_tokens": 24, "ignore_eos": True, **fields})


@pytest.fixture(scope="module")
def triton(request: pytest.FixtureRequest) -> Path:
    cache = request.config.cache
    assert cache is not None
    return install_triton(cache.mkdir("triton"))


@pytest.fixture(scope="module")
async def engine(triton: Path) -> AsyncIterator[LocalEngine]:
    lora = {"max_rank": 8, "max_loaded": 1, "max_cached": 2}
    async with second_runner_engine(triton, max_num_seqs=PLACES, max_model_len=512, lora=lora) as engine:
        yield engine


async def seams(engine: LocalEngine, operation: Operation, body: dict[str, Any]) -> list[Any]:
    """What is said otherwise by a stream that is cut after its first token, in its middle, before its end."""
    whole = await hear(engine, asked(operation, body))
    cuts = whole.cuts()
    chosen = [cuts[0], cuts[len(cuts) // 2], cuts[-1]]
    found = await at_each(chosen, partial(continued, engine, operation, body, whole))
    assert len(whole.tokens) > 3
    return [differences(whole, again, index) for _, again in found for index in range(body.get("n", 1))]


async def test_engine_core_has_the_runner_and_scheduler_of_gpus(engine: LocalEngine) -> None:
    assert await engine._engine.collective_rpc(runner_of) == ["vllm.v1.worker.gpu.model_runner"]
    assert str(engine._engine.vllm_config.scheduler_config.scheduler_cls).endswith(
        ".ContinuingAsyncScheduler"
    )


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        short(),
        short(logprobs=True, top_logprobs=3),
        short(max_tokens=40, presence_penalty=2, frequency_penalty=0.8, repetition_penalty=1.1),
        short(n=2, **NEARLY_GREEDY),
        chat("Describe Oslo.", max_tokens=60, response_format=strict(OSLO)),
        (
            "completions",
            {"prompt": "The sea", "max_tokens": 24, "structured_outputs": {"regex": "( [a-z]{2,6}){5}"}},
        ),
    ],
    ids=["greedy", "logprobs", "penalties", "two sequences", "json", "regex"],
)
async def test_a_continued_stream_has_the_tokens_of_an_undisturbed_one(
    engine: LocalEngine, operation: Operation, body: dict[str, Any]
) -> None:
    assert not any(await seams(engine, operation, body))


async def test_preempted_sequences_have_the_tokens_of_undisturbed_ones(engine: LocalEngine) -> None:
    names = [f"story {number}" for number in range(PLACES)]
    undisturbed = await asyncio.gather(*(answer(engine, "background", name, 32) for name in names))

    flood = [asyncio.create_task(answer(engine, "background", name, 32)) for name in names]
    chats = await asyncio.gather(*(answer(engine, "interactive", name, 6) for name in names))
    assert not any(task.done() for task in flood)  # each has lost its place in the batch

    assert await asyncio.gather(*flood) == undisturbed
    assert [text.startswith(chat) for text, chat in zip(undisturbed, chats, strict=True)] == [True] * PLACES


async def test_an_adapter_changes_no_other_answer_of_its_batch(engine: LocalEngine) -> None:
    async def tell(adapter: Adapter | None) -> str:
        name = "tide" if adapter is None else adapter.name
        request = replace(asked(*short(model=name)), adapter=adapter)
        text: str = said((await hear(engine, request)).chunks)["text"]
        return text

    alone = [await tell(PIRATE), await tell(None)]
    assert await asyncio.gather(tell(PIRATE), tell(None)) == alone
    assert alone[0].startswith("Ahoy! ")
    assert not alone[1].startswith("Ahoy! ")


@pytest.mark.parametrize("ranks", ["tensor_parallel_size", "pipeline_parallel_size"])
async def test_two_ranks_continue_and_preempt_with_the_same_tokens(triton: Path, ranks: str) -> None:
    """The workers are processes, as on GPUs of one node."""
    async with second_runner_engine(triton, max_num_seqs=2, **RANKS, **{ranks: 2}) as engine:
        runners = await engine._engine.collective_rpc(runner_of)
        assert runners == ["vllm.v1.worker.gpu.model_runner"] * 2
        assert not any(await seams(engine, *short()))
        undisturbed = await answer(engine, "background", "story", 24)
        flood = [asyncio.create_task(answer(engine, "background", "story", 24)) for _ in range(2)]
        await asyncio.gather(*(answer(engine, "interactive", "chat", 4) for _ in range(2)))
        assert await asyncio.gather(*flood) == [undisturbed] * 2
