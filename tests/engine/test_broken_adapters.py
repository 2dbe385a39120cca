"""LoRA adapters that cannot be loaded: each is refused with the reason, and hurts no other."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save

from serve_app.api.errors import ApiError
from serve_app.settings.model_names import Adapter
from tests.engine.lora import Lora
from tests.http_server import silent_server
from tests.stub_engine import LIMIT_S


@pytest.mark.parametrize(
    ("name", "files", "status", "words"),
    [
        ("rank", {"rank": 16}, 400, "LoRA rank 16 is greater than max_lora_rank 8"),
        ("module", {"module": "elsewhere"}, 400, "expected target modules"),
        ("narrow", {"hidden": 64}, 400, r"v_proj\.lora_A: \(4, 64\) in .* the module takes \(4, 256\)"),
        ("wide", {"hidden": 512}, 400, r"the module takes \(4, 256\)"),
        ("odd", {"values": 96}, 400, r"v_proj\.lora_B: \(96, 4\) in .* the module takes \(128, 4\)"),
        ("deep", {"layers": 3}, 400, r"layers\.2\.self_attn\.v_proj: no module with this name"),
        ("weaker", {"r": 8}, 400, r"\(4, 256\) in .* takes \(8, 256\) with the rank 8"),
        ("rank-pattern", {"rank_pattern": {"1.self_attn.v_proj": 2}}, 400, "with the rank 2"),
        ("multimodal", {"prefix": "base_model.model.language_model."}, 400, r"does is model\.layers\.0"),
        ("text-part", {"prefix": "base_model.model.model.language_model."}, 400, "no module with this name"),
        ("headless", {"prefix": "base_model.model."}, 400, r"layers\.0\.self_attn\.v_proj: no module"),
        ("dora", {"use_dora": True}, 400, "DoRA"),
        ("other-kind", {"peft_type": "ADALORA"}, 400, r"adapter_config\.json: peft_type = 'ADALORA'"),
        ("no-tensors", {"layers": 0}, 400, "no tensors of an adapter"),
    ],
)
async def test_broken_adapter_is_refused_with_the_reason(
    lora: Lora, name: str, files: dict[str, Any], status: int, words: str
) -> None:
    broken = lora.adapter(name, **files)
    kept = lora.adapters.names()

    with pytest.raises(ApiError, match=words) as refused:
        await lora.text(broken)

    assert (refused.value.status, refused.value.param) == (status, "model")
    assert str(lora.folder) not in refused.value.message
    assert lora.adapters.names() == kept
    good = lora.adapter("one")
    assert (await lora.text(good))["model"] == "one"


@pytest.mark.parametrize("name", ["model.embed_tokens", "lm_head"])
async def test_adapter_of_more_tokens_is_refused(lora: Lora, name: str) -> None:
    source = Path(lora.adapter(f"more-{name}").source)
    tensors = load_file(source / "adapter_model.safetensors")
    rows = {f"base_model.model.{name}.base_layer.weight": np.zeros((2050, 256), np.float32)}
    (source / "adapter_model.safetensors").write_bytes(save(tensors | rows))

    with pytest.raises(ApiError, match="has 2050 rows; the vocabulary of the model has 2048") as refused:
        await lora.text(Adapter(f"more-{name}", str(source)))

    assert refused.value.status == 400


async def test_broken_files_are_refused(lora: Lora) -> None:
    scalar = {"model.layers.0.self_attn.q_proj.lora_A.weight": np.array(1.0, np.float32)}
    for name, weights in {"garbage": b"no tensors", "scalar": save(scalar)}.items():
        source = Path(lora.adapter(name).source)
        (source / "adapter_model.safetensors").write_bytes(weights)
        kept = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            lora.now += 31.0

            with pytest.raises(ApiError, match="cannot be loaded") as refused:
                await lora.text(Adapter(name, str(source)))

            assert refused.value.status == 400
            assert str(lora.folder) not in refused.value.message
        assert len(os.listdir("/proc/self/fd")) == kept


async def test_missing_adapter_is_404(lora: Lora) -> None:
    with pytest.raises(ApiError, match=r"has no adapter_config\.json") as refused:
        await lora.text(Adapter("nowhere", str(lora.folder / "nowhere")))

    assert (refused.value.status, refused.value.code) == (404, "model_not_found")


async def test_failed_load_is_remembered_for_a_while(lora: Lora) -> None:
    source = lora.folder / "late"
    with pytest.raises(ApiError):
        await lora.text(Adapter("late", str(source)))
    late = lora.adapter("late")

    with pytest.raises(ApiError):
        await lora.text(late)
    lora.now += 31.0

    assert (await lora.text(late))["model"] == "late"


async def test_broken_adapter_hurts_no_running_stream(lora: Lora) -> None:
    good = lora.adapter("one")
    alone = await lora.text(good, "completions", max_tokens=64, ignore_eos=True)

    async def break_often() -> None:
        for number in range(6):
            with pytest.raises(ApiError):
                await lora.text(lora.adapter(f"broken-{number}", hidden=64))

    answer, _ = await asyncio.gather(
        lora.text(good, "completions", max_tokens=64, ignore_eos=True), break_often()
    )

    assert answer["choices"] == alone["choices"]


async def test_hung_sources_do_not_delay_another_source(lora: Lora) -> None:
    lora.adapter("beside")
    memory = fsspec.filesystem("memory")
    for file in (lora.folder / "beside").iterdir():
        memory.pipe(f"/beside/{file.name}", file.read_bytes())
    with silent_server() as address:
        hung = [
            asyncio.create_task(lora.text(Adapter(f"hung-{number}", f"{address}/{number}")))
            for number in range(8)
        ]
        async with asyncio.timeout(LIMIT_S):
            answer = await lora.text(Adapter("beside", "memory://beside"))

        assert answer["model"] == "beside"
        assert not any(task.done() for task in hung)
    # The server has closed the connections.
    for task in hung:
        with pytest.raises(ApiError, match="its source cannot be read now") as refused:
            await task
        assert (refused.value.status, refused.value.code) == (503, "adapter_unavailable")
        assert refused.value.headers == {"Retry-After": "30"}
