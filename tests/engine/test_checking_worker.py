"""Which adapters fit a model, for vLLM's own modules of several kinds of models, on one and on four GPUs."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig
from vllm.config import set_current_vllm_config
from vllm.distributed import (
    cleanup_dist_env_and_memory,
    ensure_model_parallel_initialized,
    get_tp_group,
    init_distributed_environment,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.layers import FusedMoEWithLoRA
from vllm.lora.layers.base import BaseLayerWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.model_manager import LoRAModelManager
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from vllm.model_executor.model_loader.utils import initialize_model

from serve_app.engine.checking_worker import check_fit
from serve_app.weights import embedded_model_path

HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCABULARY, EXPERTS = 64, 96, 4, 2, 16, 2048, 4
ATTENTION = {
    "self_attn.q_proj": (HIDDEN, HEADS * HEAD),
    "self_attn.k_proj": (HIDDEN, KV_HEADS * HEAD),
    "self_attn.v_proj": (HIDDEN, KV_HEADS * HEAD),
    "self_attn.o_proj": (HEADS * HEAD, HIDDEN),
}
DENSE = {"mlp.gate_proj": (HIDDEN, INNER), "mlp.up_proj": (HIDDEN, INNER), "mlp.down_proj": (INNER, HIDDEN)}
FUSED = {
    "self_attn.qkv_proj": (HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD),
    "self_attn.o_proj": (HEADS * HEAD, HIDDEN),
    "mlp.gate_up_proj": (HIDDEN, 2 * INNER),
    "mlp.down_proj": (INNER, HIDDEN),
}
ROUTED = {
    f"mlp.experts.{expert}.{name}": sizes
    for expert in range(EXPERTS)
    for name, sizes in (("gate_proj", (HIDDEN, 32)), ("up_proj", (HIDDEN, 32)), ("down_proj", (32, HIDDEN)))
}
STACKED = {"mlp.experts.base_layer": (HIDDEN, 2 * INNER), "mlp.experts": (INNER, HIDDEN)}
MODELS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, int]]]] = {
    # The configuration, and the inputs and outputs of the modules in a layer, by PEFT's names.
    "llama": ({}, ATTENTION | DENSE),
    "phi3": ({"pad_token_id": 0}, FUSED),
    "qwen3_moe": ({"num_experts": EXPERTS, "moe_intermediate_size": 32}, ATTENTION | ROUTED),
    "gpt_oss": ({"num_local_experts": EXPERTS}, ATTENTION | STACKED),
}


@dataclass
class Model:
    """A model whose modules take adapters, and what PEFT would train there."""

    manager: LoRAModelManager
    tensors: dict[str, tuple[int, ...]]
    """The shape of each tensor of an adapter with the rank 2 that trains every module."""

    def check(self, tensors: dict[str, tuple[int, ...]], **config: Any) -> None:
        peft = PEFTHelper.from_dict({"r": 2, "lora_alpha": 2, "target_modules": [], **config})
        mapper = getattr(self.manager.model, "hf_to_vllm_mapper", None)
        adapter = LoRAModel.from_lora_tensors(
            1,
            {name: torch.zeros(shape) for name, shape in tensors.items()},
            peft,
            "cpu",
            weights_mapper=mapper and mapper.get_rename_mapper(),
        )
        check_fit(adapter, self.manager)


def shapes(modules: dict[str, tuple[int, int]], embeddings: bool) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for layer, (module, (inputs, outputs)) in itertools.product(range(2), modules.items()):
        name = f"base_model.model.model.layers.{layer}.{module}"
        rank = 2 * EXPERTS if module in STACKED else 2
        found |= {f"{name}.lora_A.weight": (rank, inputs), f"{name}.lora_B.weight": (outputs, rank)}
    if embeddings:
        found |= {
            "base_model.model.model.embed_tokens.lora_embedding_A": (2, VOCABULARY),
            "base_model.model.model.embed_tokens.lora_embedding_B": (HIDDEN, 2),
            "base_model.model.lm_head.lora_A.weight": (2, HIDDEN),
            "base_model.model.lm_head.lora_B.weight": (VOCABULARY, 2),
        }
    return found


def take_experts(self: Any, runner: Any) -> None:
    """What vLLM does with a mixture of experts, but for its kernels: no kernel for a CPU takes adapters."""
    BaseLayerWithLoRA.__init__(self)
    self.base_layer, self.moe_config, self.device = runner, runner.moe_config, torch.device("cpu")
    parallel = runner.moe_config.moe_parallel_config
    self.tp_size, self.tp_rank, self._w13_slices = parallel.tp_size, parallel.tp_rank, 2
    self.enable_moe_shared_loras = False


@pytest.fixture(
    scope="module",
    params=[("llama", 1), ("llama", 4), ("phi3", 4), ("qwen3_moe", 4), ("gpt_oss", 2)],
    ids="{0[0]}-{0[1]}".format,
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    kind, gpus = request.param
    given_config, modules = MODELS[kind]
    folder = tmp_path_factory.mktemp(kind)
    config = AutoConfig.for_model(
        kind,
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD,
        max_position_embeddings=512,
        **given_config,
    )
    names = {"qwen3_moe": "Qwen3MoeForCausalLM", "gpt_oss": "GptOssForCausalLM"}
    config.architectures = [names.get(kind, f"{kind.title()}ForCausalLM")]
    config.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((embedded_model_path() / name).read_bytes())
    arguments = EngineArgs(
        model=str(folder), enforce_eager=True, max_model_len=128, enable_lora=True, max_lora_rank=8
    )
    vllm_config = arguments.create_engine_config()
    with pytest.MonkeyPatch.context() as monkeypatch, set_current_vllm_config(vllm_config):
        init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        monkeypatch.setattr(get_tp_group(), "world_size", gpus)  # each module then makes its own part
        monkeypatch.setattr(FusedMoEWithLoRA, "__init__", take_experts)
        monkeypatch.setattr(FusedMoEWithLoRA, "set_mapping", lambda *_: None)
        made = initialize_model(vllm_config)
        worker = LRUCacheWorkerLoRAManager(vllm_config, torch.device("cpu"), {})
        worker.create_lora_manager(made, vllm_config)
    yield Model(made.lora_manager, shapes(modules, embeddings=kind != "gpt_oss"))
    cleanup_dist_env_and_memory()


def test_an_adapter_of_every_module_fits(model: Model) -> None:
    model.check(model.tensors)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_one_wrong_size_anywhere_is_refused_by_name(model: Model, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(model.tensors)))
    right = model.tensors[name]
    axis, change = data.draw(st.sampled_from([0, 1])), data.draw(st.sampled_from([-1, 1]))
    wrong = tuple(size + change * (number == axis) for number, size in enumerate(right))

    with pytest.raises((ValueError, RuntimeError), match=r"lora_[AB]: \(") as refused:
        model.check(model.tensors | {name: wrong})

    assert f"{wrong} in adapter_model.safetensors, but the module takes {right}" in str(refused.value)
    assert name.partition(".lora_")[0].rpartition(".")[2] in str(refused.value)
