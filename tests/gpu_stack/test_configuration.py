"""vLLM's configuration for GPUs, as it becomes of our settings."""

import json
from typing import Any

import pytest

from tests.gpu_stack.conftest import Fork

IN_PROCESS = "serve_app.patches.vllm.InProcessExecutor"
ASYNC = "serve_app.engine.continuing_core.ContinuingAsyncScheduler"
SYNC = "serve_app.engine.continuing_core.ContinuingScheduler"

CONFIGURE = """
import json, os, sys
from serve_app.settings.tree import ModelSettings
from serve_app.engine.arguments import engine_config, vllm_namespace
import torch
model = ModelSettings.model_validate(json.loads(os.environ["SETTINGS"]))
try:
    c = engine_config(vllm_namespace(model))
    found = {
        "runner": 2 if c.use_v2_model_runner else 1,
        "executor": c.parallel_config.distributed_executor_backend,
        "extension": c.parallel_config.worker_extension_cls,
        "scheduler": c.scheduler_config.scheduler_cls,
        "asynchronous": c.scheduler_config.async_scheduling,
        "warm_up": c.kernel_config.enable_jit_warmup,
        "graphs": str(c.compilation_config.cudagraph_mode).rpartition(".")[2],
        "quantization": c.model_config.quantization,
        "kv_cache": c.cache_config.cache_dtype,
        "lora": c.lora_config is not None,
        "speculation": None if c.speculative_config is None else c.speculative_config.method,
    }
except (ValueError, NotImplementedError) as error:
    found = {"refused": str(error)}
print(json.dumps({**found, "initialised": torch.cuda.is_initialized()}))
"""
PLAIN: dict[str, Any] = {
    "runner": 2,
    "executor": IN_PROCESS,
    "extension": "",
    "scheduler": ASYNC,
    "asynchronous": True,
    "warm_up": True,
    "quantization": None,
    "kv_cache": "auto",
    "lora": False,
    "speculation": None,
    "initialised": False,
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}


def configured(fork: Fork, variables: dict[str, str] | None = None, **settings: Any) -> dict[str, Any]:
    model = {"name": "x", "device": "gpu", "max_model_len": 512, **settings}
    found: dict[str, Any] = fork(CONFIGURE, SETTINGS=json.dumps(model), **(variables or {}))
    return found


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ({}, {"graphs": "FULL_AND_PIECEWISE"}),
        ({"lora": {}}, {"lora": True}),
        ({"enforce_eager": True}, {"graphs": "NONE"}),  # with the warm-up of kernels
        ({"quantization": "fp8"}, {"quantization": "fp8"}),
        ({"engine_args": {"kv_cache_dtype": "fp8"}}, {"kv_cache": "fp8"}),
        (
            {"engine_args": {"speculative_config": NGRAM}},
            {"speculation": "ngram", "asynchronous": False, "scheduler": SYNC},
        ),
        ({"scheduling_policy": "fcfs"}, {}),
    ],
    ids=["plain", "lora", "eager", "fp8", "fp8-kv-cache", "ngram", "fcfs"],
)
def test_engine_on_one_gpu(fork: Fork, settings: dict[str, Any], differs: dict[str, Any]) -> None:
    found = configured(fork, **settings)

    expected = {**PLAIN, **differs}
    assert {name: found.get(name) for name in expected} == expected


def test_eagle_keeps_asynchronous_scheduling(fork: Fork) -> None:
    from serve_app.weights import embedded_model_path

    draft = {"method": "eagle", "model": str(embedded_model_path()), "num_speculative_tokens": 2}
    found = configured(fork, engine_args={"speculative_config": draft})

    assert (found.get("speculation"), found.get("asynchronous")) == ("eagle", True), found
    assert (found["executor"], found["scheduler"]) == (IN_PROCESS, ASYNC)


def test_tensor_parallel_engine_gets_workers_of_ray(fork: Fork) -> None:
    two = {"FAKE_GPUS": "2", "CUDA_VISIBLE_DEVICES": ""}
    found = configured(fork, two, tensor_parallel_size=2)

    assert (found.get("executor"), found.get("scheduler")) == ("ray", ASYNC), found
    assert not found["initialised"]


def test_pipeline_parallel_engine_never_runs_in_one_process(fork: Fork) -> None:
    two = {"FAKE_GPUS": "2", "CUDA_VISIBLE_DEVICES": ""}
    found = configured(fork, two, engine_args={"pipeline_parallel_size": 2})

    assert "Pipeline Parallelism" in found.get("refused", "") or found.get("executor") == "ray", found
