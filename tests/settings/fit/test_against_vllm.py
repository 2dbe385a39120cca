"""The arithmetic agrees with vLLM's model classes and KV cache specs within 10 %."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_app.settings.fit.architecture import read_architecture
from serve_app.settings.fit.memory import Sharding, kv_bytes
from tests.settings.fit.models import MODELS, PublicModel
from tests.settings.fit.vllm_memory import BATCH_TOKENS, compute, one_process

TOKENS = 8192
OVER = Sharding(batch_tokens=BATCH_TOKENS // 2)  # two steps in flight; the CPU has one of twice as many
QUICK = ("meta-llama/Meta-Llama-3.1-8B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b")
NEED_TORCHVISION = {name for name in MODELS if name.startswith("Qwen/Qwen3.5")}
NO_DECODER = {"BAAI/bge-m3"}


@pytest.fixture(scope="module")
def _groups() -> Iterator[None]:
    with one_process():
        yield


def check(model: PublicModel, folder: Path) -> None:
    architecture = read_architecture(model.config)
    tokens = min(TOKENS, architecture.longest or TOKENS)
    computed = compute(model.config, tokens, folder)
    assert kv_bytes(architecture, tokens, OVER) == pytest.approx(computed.sequence_bytes, rel=0.1)
    is_whole = model.family not in ("vision", "hybrid") and architecture.quantization is None
    if is_whole:  # vision towers need torchvision, and experts of hybrids are left out
        assert model.bytes == pytest.approx(2 * computed.parameters, rel=0.1)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.usefixtures("_groups")
def test_cache_of_a_sequence_is_as_vllm_computes(name: str, tmp_path: Path) -> None:
    check(MODELS[name], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*MODELS} - {*QUICK} - NEED_TORCHVISION - NO_DECODER))
@pytest.mark.usefixtures("_groups")
def test_cache_of_each_public_model_is_as_vllm_computes(name: str, tmp_path: Path) -> None:
    check(MODELS[name], tmp_path)
