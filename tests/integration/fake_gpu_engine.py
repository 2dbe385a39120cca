"""A stand-in for the engine deployment where there is no GPU: it says where Ray put it, and starts workers.

The engine core and vLLM's executor are real processes, and the workers have no model.
"""

import multiprocessing
import os
from typing import Any

import ray
from ray.util import get_current_placement_group
from ray.util.placement_group import placement_group_table

from serve_app import env
from serve_app.settings.tree import ModelSettings


class FakeGpuEngine:
    """Placed as `Engine` would be; holds no engine and claims no real GPU."""

    def __init__(self, model: dict[str, Any], *settings: Any, **more: Any) -> None:
        self._model = ModelSettings.model_validate(model)
        self._core: Any = None

    def where(self) -> dict[str, Any]:
        """The resources Ray gave this replica, and the bundles of its placement group."""
        context = ray.get_runtime_context()
        group = get_current_placement_group()
        table = placement_group_table(group) if group is not None else None
        return {
            "process": os.getpid(),
            "node": context.get_node_id(),
            "assigned": context.get_assigned_resources(),
            "gpu_ids": context.get_accelerator_ids()["GPU"],
            "bundles": list(table["bundles"].values()) if table is not None else None,
            "strategy": table["strategy"] if table is not None else None,
        }

    def start_workers(self) -> list[dict[str, Any]]:
        """Start an engine core with vLLM's executor, and return what each worker says of itself."""
        from vllm.utils.system_utils import get_mp_context

        from serve_app.engine.arguments import engine_config, vllm_namespace
        from tests.integration.stub_worker import run_core

        config = engine_config(vllm_namespace(self._model))
        context = get_mp_context()
        multiprocessing.set_executable(env.PYTHON)  # as `launch` does
        self._pipe, theirs = context.Pipe()
        self._core = context.Process(target=run_core, args=(config, theirs))
        self._core.start()
        theirs.close()
        workers: list[dict[str, Any]] = self._pipe.recv()
        return workers

    def stop_workers(self) -> int | None:
        """Shut the executor down, and return the status of the engine core."""
        self._pipe.close()
        self._core.join()
        status: int | None = self._core.exitcode
        return status
