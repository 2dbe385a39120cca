"""vLLM's second model runner and asynchronous scheduler, which GPUs have, on the CPU.

The second runner needs Triton, and this build of vLLM has none. So engine cores are forked from a zygote that
has Triton of `requirements/gpu.txt`, whose interpreter runs kernels as Python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from serve_app.engine.local_client import LocalEngine

LOCK = Path(__file__).parents[2] / "requirements" / "gpu.txt"
REGISTER = f"{__name__}:register_cpu"


def install_triton(folder: Path) -> Path:
    """Install the locked Triton into `folder`, unless it is there, and return the folder to import from."""
    locked = re.search(r"^triton==(\S+)[^\n]*\n(?: .*\n)+", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    assert locked is not None, f"{LOCK} has no triton"
    target = folder / f"triton-{locked[1]}"
    if not target.exists():
        part, lock = folder / "part", folder / "triton.txt"
        lock.write_text(locked[0], encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "--no-compile", "--target", str(part), "--requirement", str(lock)], check=True)
        part.rename(target)
    return target


def register_cpu() -> None:
    """Have vLLM find a Triton for CPUs. The zygote calls this before it imports vLLM."""
    from triton.backends import backends

    backends["cpu"] = SimpleNamespace(  # the only backend whose driver vLLM does not ask whether it is active
        driver=SimpleNamespace(is_active=lambda: False), compiler=None
    )


def runner_of(worker: Any) -> str:
    """Where the class of a worker's model runner comes from. Called in the engine core."""
    return type(worker.model_runner).__mro__[1].__module__


@asynccontextmanager
async def second_runner_engine(triton: Path, **model: Any) -> AsyncIterator[LocalEngine]:
    """The embedded model in an engine core as on a GPU, with its adapters if it has `lora`."""
    from serve_app.engine.adapters import Adapters
    from serve_app.engine.continuing_core import let_core_continue, let_workers_check
    from serve_app.engine.local_client import LocalEngine
    from serve_app.weights.adapter_store import AdapterStore
    from tests.engine.stub_engine_core import configured, real_serving, zygote_of_cores

    search = os.pathsep.join([str(triton), os.environ.get("PYTHONPATH", "")])
    environment = {
        "PYTHONPATH": search,
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # for `runner_of`
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else each worker needs a NUMA node of its own
    }
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("vllm.config.vllm.HAS_TRITON", True)
        settings, namespace, config = configured(**model)
        # vLLM's platform of CPUs turns asynchronous scheduling off; that of GPUs leaves it on.
        config.scheduler_config.async_scheduling, config.scheduler_config.scheduler_cls = True, None
        config.parallel_config.worker_extension_cls = ""
        let_core_continue(config)
        if settings.lora is not None:
            let_workers_check(config)
        async with real_serving(namespace, config, zygote_of_cores(REGISTER)) as serving:
            adapters = None
            if settings.lora is not None:
                store = AdapterStore(triton.parent / "adapters", 4 << 20)
                adapters = Adapters(serving.engine, serving.adapters, settings.lora, store, lambda *_: None)
            yield LocalEngine(serving, settings, lambda _: None, adapters=adapters)
