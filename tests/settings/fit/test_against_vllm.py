"""The arithmetic agrees with vLLM's model classes and KV cache specs within 10 %."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_app.settings.fit.architecture import read_architecture
from serve_app.settings.fit.memory import Sharding, kv_bytes
from tests.settings.fit.models import MODELS, PublicModel
from tests.settings.fit.vllm_memory import BATCH_TOKENS, compute, one_process

TOKENS = 16_384
OVER = Sharding(batch_tokens=BATCH_TOKENS // 2)  # two steps in flight; the CPU has one of twice as many
QUICK = ("meta-llama/Meta-Llama-3.1-8B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b")
NOT_ON_THE_CPU = {
    "BAAI/bge-m3",  # an encoder without a cache
    "deepseek-ai/DeepSeek-V2-Lite", "moonshotai/Kimi-K2.5",  # their rotary embedding copies weights
    "deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5-FP8",  # sparse attention has no CPU kernel
    *(name for name in MODELS if name.startswith("Qwen/Qwen3.5")),  # need torchvision
}  # fmt: skip


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
@pytest.mark.parametrize("name", sorted({*MODELS} - {*QUICK} - NOT_ON_THE_CPU))
@pytest.mark.usefixtures("_groups")
def test_cache_of_each_public_model_is_as_vllm_computes(name: str, tmp_path: Path) -> None:
    check(MODELS[name], tmp_path)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_gated_delta_nets_have_the_states_of_vllm(size: int) -> None:
    import torch
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

    model = MODELS["Qwen/Qwen3.5-27B"]
    text, found = model.config["text_config"], read_architecture(model.config)
    shapes = MambaStateShapeCalculator.gated_delta_net_state_shape(
        size, text["linear_num_key_heads"], text["linear_num_value_heads"], text["linear_key_head_dim"],
        text["linear_value_head_dim"], text["linear_conv_kernel_dim"],
    )  # fmt: skip
    state = MambaSpec(block_size=16, shapes=shapes, dtypes=(torch.bfloat16, torch.float32)).page_size_bytes
    token = FullAttentionSpec(
        block_size=1, num_kv_heads=4 // size, head_size=256, dtype=torch.bfloat16
    ).page_size_bytes
    blocks = -(-state // (16 * token)) * 16  # 16 full layers, and three groups of 16 states
    expected = 16 * blocks * token * (-(-TOKENS // blocks) + 3 * 2)
    assert kv_bytes(found, TOKENS, Sharding(size)) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5-FP8"])
def test_sparse_attention_has_the_caches_of_vllm(name: str) -> None:
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    latent = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    index = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=132, dtype=torch.uint8)
    found = read_architecture(MODELS[name].config)
    blocks = TOKENS // 16 * found.depth
    for size in (1, 8):  # each GPU holds all
        expected = blocks * (latent.page_size_bytes + index.page_size_bytes)
        assert kv_bytes(found, TOKENS, Sharding(size)) == expected
