"""Workers without a model, under vLLM's own executors, on GPUs that a Ray cluster only claims to have."""

import os
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import psutil
import ray
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.executor import Executor, ray_executor_v2
from vllm.v1.executor.ray_executor_v2 import RayWorkerProc

NAME = f"{__name__}.StubWorker"
"""What `worker_cls` is set to."""


class Worker:
    """The methods that vLLM calls before a model is loaded."""

    def __init__(self, vllm_config: VllmConfig, rank: int, **_: Any) -> None:
        self.parallel, self.rank = vllm_config.parallel_config, rank

    def init_device(self) -> None: ...

    def load_model(self) -> None: ...

    def shutdown(self) -> None: ...


class StubWorker(Worker):
    """Says where it runs. vLLM adds the worker extension to the bases of this class."""

    def describe(self) -> dict[str, Any]:
        parents = psutil.Process().parents()
        return {
            "rank": self.rank,
            "process": os.getpid(),
            "zygote": next((each.pid for each in parents if "Zygote" in "".join(each.cmdline())), None),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "gpus_of_node": self.parallel.assigned_physical_gpu_ids,
            "node": ray.get_runtime_context().get_node_id() if ray.is_initialized() else None,
        }


class StubRayWorker(RayWorkerProc):  # type: ignore[misc]  # vLLM has no types
    """vLLM's worker actor, whose platform has GPUs by Ray's name."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        claim_gpus()
        super().__init__(*arguments, **more)


def claim_gpus() -> None:
    """Have vLLM's platform of CPUs take bundles with GPUs."""
    type(current_platform).ray_device_key = "GPU"


def run_core(config: VllmConfig, replica: Connection) -> None:
    """Run vLLM's executor in the process of an engine core until the replica closes its pipe."""
    claim_gpus()
    ray_executor_v2.RayWorkerProc = StubRayWorker
    config.parallel_config.worker_cls = NAME
    executor = Executor.get_class(config)(config)
    replica.send(executor.collective_rpc("describe"))
    with suppress(EOFError):
        replica.recv()
    executor.shutdown()
