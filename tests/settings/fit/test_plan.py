"""The choice of GPUs for public models, on every kind of GPU."""

from typing import Any

import pytest

from serve_app.settings.fit.architecture import read_architecture
from serve_app.settings.fit.memory import GIB, GPUS, Sharding, kv_bytes, reserved_bytes, weight_bytes
from serve_app.settings.fit.plan import SHARE, DoesNotFitError, Plan, choose, choose_cpu, step_seconds
from tests.settings.fit.models import MODELS

SPARSE = ("deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5-FP8")


def plan_of(
    name: str, gpu: str, gpus: int | None = None, context: int | None = None, users: int = 50
) -> Plan:
    model = MODELS[name]
    return choose(read_architecture(model.config), model.bytes, GPUS[gpu], gpus, context, users)


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_fits_each_kind_of_gpu(name: str) -> None:
    model = read_architecture(MODELS[name].config)
    for kind in GPUS.values():
        if name in SPARSE and kind.ray_name not in ("H100", "H200", "B200"):
            continue
        plan = choose(model, MODELS[name].bytes, kind, None, None, 50)
        assert model.attention_heads % plan.over.tensor_parallel == 0
        assert plan.weights + plan.reserved + plan.cache <= SHARE * kind.memory_gib * GIB
        assert kv_bytes(model, plan.context, plan.over) <= plan.cache
        assert plan.context <= (model.longest or plan.context)
        assert plan.replicas * plan.over.sequences >= 50


@pytest.mark.parametrize(
    ("name", "gpu", "context", "tensor", "stages"),
    [
        ("Qwen/Qwen3-8B", "l4", None, 1, 1),
        ("Qwen/Qwen3-32B", "a100-80gb", None, 1, 1),
        ("Qwen/Qwen3-32B-AWQ", "rtx4090", 8192, 1, 1),
        ("Qwen/Qwen3-32B-FP8", "l40s", None, 1, 1),
        ("meta-llama/Meta-Llama-3.1-70B", "h100", 32_768, 4, 1),
        ("openai/gpt-oss-120b", "h100", None, 1, 1),
        ("deepseek-ai/DeepSeek-V3", "h200", None, 8, 1),
        ("meta-llama/Meta-Llama-3.1-405B", "h100", None, 8, 2),
    ],
)
def test_known_choices_of_gpus(name: str, gpu: str, context: int | None, tensor: int, stages: int) -> None:
    over = plan_of(name, gpu, context=context).over
    assert (over.tensor_parallel, over.pipeline_parallel) == (tensor, stages)


def test_given_gpus_become_replicas_when_one_is_enough() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "a100-80gb", gpus=2, users=1000)
    assert (plan.over.gpus, plan.replicas) == (1, 2)


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_attention_needs_hopper_or_blackwell(name: str) -> None:
    with pytest.raises(DoesNotFitError, match="sparse MLA for H100, H200 and B200"):
        plan_of(name, "a100-80gb")
    assert plan_of(name, "h200").over.gpus == 8


def test_too_few_gpus_are_refused_with_numbers() -> None:
    with pytest.raises(DoesNotFitError, match=r"65\.7 GiB of weights .* on each of 2 GPUs, .* 19\.8 GiB"):
        plan_of("meta-llama/Meta-Llama-3.1-70B", "l4", gpus=2)


@pytest.mark.parametrize(
    ("name", "gpu", "context"),
    [
        ("Qwen/Qwen3-32B-AWQ", "l4", None),
        ("Qwen/Qwen3-8B", "l4", 40_960),
        ("google/gemma-3-27b-it", "h100", 131_072),
    ],
)
def test_a_refusal_names_a_context_that_fits(name: str, gpu: str, context: int | None) -> None:
    with pytest.raises(DoesNotFitError) as refusal:
        plan_of(name, gpu, 1, context)
    named = int(str(refusal.value).partition("--context ")[2].partition(" ")[0])
    assert plan_of(name, gpu, 1, named).context == named


def test_a_longer_context_takes_more_gpus() -> None:
    assert plan_of("Qwen/Qwen3-32B", "a100-80gb", context=40_960).over.gpus == 2


@pytest.mark.parametrize(
    ("name", "change", "weights", "split"),
    [
        ("Qwen/Qwen3-8B", {"num_attention_heads": 40, "num_key_value_heads": 10}, 120e9, (2, 3)),
        ("Qwen/Qwen3-8B", {"num_attention_heads": 40, "num_key_value_heads": 1}, 120e9, (8, 1)),
        (
            "Qwen/Qwen3-8B",
            {"quantization_config": {"quant_method": "gptq", "group_size": 1024}},
            120e9,
            (4, 2),
        ),
        (
            "Qwen/Qwen3-8B",
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [1024, 1024]}},
            120e9,
            (4, 2),
        ),
        (
            "Qwen/Qwen3-30B-A3B",
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128}}},
                }
            },
            60e9,
            (2, 2),
        ),
        (
            "Qwen/Qwen3-30B-A3B",
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
            60e9,
            (4, 1),
        ),
    ],
)  # fmt: skip
def test_tensor_parallelism_keeps_kv_heads_and_quantisation_groups_whole(
    name: str, change: dict[str, Any], weights: float, split: tuple[int, int]
) -> None:
    model = read_architecture({**MODELS[name].config, **change})
    over = choose(model, int(weights), GPUS["l4"], None, 4096, 8).over
    assert (over.tensor_parallel, over.pipeline_parallel) == split


def test_no_more_stages_than_layers() -> None:
    model = read_architecture({**MODELS["Qwen/Qwen3-8B"].config, "num_hidden_layers": 4})
    with pytest.raises(DoesNotFitError):
        choose(model, 600 * GIB, GPUS["l4"], 9_999_999, 4096, 8)


@pytest.mark.parametrize("users", [50, 10_000])
def test_users_beyond_the_memory_queue(users: int) -> None:
    plan = plan_of("Qwen/Qwen3-32B", "h100", gpus=1, context=32_768, users=users)
    assert (plan.over.gpus, plan.context, plan.replicas) == (1, 32_768, 1)
    assert 1 <= plan.over.sequences <= plan.cache // plan.sequence


@pytest.mark.parametrize(
    "name", ["google/gemma-4-31B-it", "openai/gpt-oss-20b", "Qwen/Qwen3-8B", "Qwen/Qwen3.5-27B"]
)
def test_more_memory_holds_no_less(name: str) -> None:
    for gpus, context, users in ((1, None, 50), (2, 32_768, 50), (8, None, 300), (8, 131_072, 8)):
        least: dict[int, tuple[int, int]] = {}
        for gpu in sorted(GPUS, key=lambda each: GPUS[each].memory_gib):
            try:
                plan = plan_of(name, gpu, gpus, context, users)
            except DoesNotFitError:
                assert least == {}
                continue
            held = (plan.context, plan.over.sequences)
            assert held >= least.get(plan.over.gpus, (0, 0))
            least[plan.over.gpus] = held


def test_cpu_plan_stays_within_the_memory() -> None:
    model = read_architecture(MODELS["Qwen/Qwen2.5-0.5B-Instruct"].config)
    plan = choose_cpu(model, 988_097_824, 16 * GIB, None, 50, 2)
    assert 2 * (plan.weights + plan.reserved + plan.cache) < 16 * GIB
    assert plan.cache >= kv_bytes(model, plan.context, plan.over)
    with pytest.raises(DoesNotFitError, match="on the CPU"):
        choose_cpu(model, 988_097_824, 3 * GIB, None, 50, 1)
    model = read_architecture(MODELS["Qwen/Qwen3-8B"].config)
    with pytest.raises(DoesNotFitError, match="leave 6,656 tokens of context and not 8,192 twice") as refusal:
        choose_cpu(model, 16_381_000_000, 26 * GIB, None, 50, 1)
    named = int(str(refusal.value).partition("--context ")[2].partition(" ")[0])
    assert choose_cpu(model, 16_381_000_000, 26 * GIB, named, 50, 1).context == named


@pytest.mark.parametrize(("gpu", "base_s"), [("h100", 0.00664), ("h200", 0.00494), ("l4", 0.064)])
def test_step_times_are_those_of_the_profiles(gpu: str, base_s: float) -> None:
    model, kind = MODELS["meta-llama/Meta-Llama-3.1-8B"], GPUS[gpu]
    plan = plan_of(model.name, gpu)
    steps = step_seconds(read_architecture(model.config), plan, kind)
    assert steps["step_base_s"] == pytest.approx(base_s, rel=0.02)
    assert steps["step_per_kv_token_s"] == pytest.approx(131_072 / 0.85 / kind.bandwidth, rel=0.02)
    assert steps["step_per_prefill_token_s"] == pytest.approx(2 * 8.03e9 / kind.flops / 0.5, rel=0.1)


# Published start-up logs of vLLM: memory that is neither weights nor KV cache, in GiB.
@pytest.mark.parametrize(
    ("name", "over", "published"),
    [
        ("Qwen/Qwen3-8B", Sharding(sequences=256), 1.40 + 0.06),  # V0: activations and other memory
        ("Qwen/Qwen3-8B", Sharding(sequences=1024), 0.9 * 79.1 - 15.27 - 53.54),  # 0.19 on 80 GB
        ("Qwen/Qwen3-32B", Sharding(2, sequences=256), 1.41 + 0.74),  # a 32B distillate, V0
    ],
)
def test_reserved_memory_is_near_published_logs(name: str, over: Sharding, published: float) -> None:
    model = read_architecture(MODELS[name].config)
    assert reserved_bytes(model, over) / GIB == pytest.approx(published, abs=1.2)


def test_weights_are_split_over_gpus_and_stages() -> None:
    model = MODELS["meta-llama/Meta-Llama-3.1-70B"]
    found = read_architecture(model.config)
    assert weight_bytes(found, model.bytes, Sharding(4)) == pytest.approx(model.bytes / 4, rel=0.01)
    assert weight_bytes(found, model.bytes, Sharding(4, 2)) == pytest.approx(model.bytes / 8, rel=0.03)
    assert weight_bytes(found, model.bytes, Sharding(), online=True) == pytest.approx(72.6e9, rel=0.01)
