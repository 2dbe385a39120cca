"""The NVIDIA GPUs of this machine, as their driver reports them (NVML). Nothing starts on the GPUs."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from serve_app import env

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    name: str
    """Such as `GPU 0 (NVIDIA H100 80GB HBM3)`."""
    kind: str
    """Ray's name of its type, such as `H100`."""
    total_bytes: int
    free_bytes: int
    holders: str = ""
    """The processes that hold its memory: `process 42 (python) holds 70.1 GiB`."""

    def lacks(self, share: float) -> str:
        """Return why an engine cannot take `share` of the memory, as vLLM requires, or "" if it can."""
        needed = share * self.total_bytes
        if self.free_bytes >= needed:
            return ""
        free, total = f"{self.free_bytes / GIB:.1f}", f"{self.total_bytes / GIB:.1f}"
        who = self.holders or "no process is named, so it is in another container"
        return f"{self.name} has {free} of {total} GiB free, and an engine takes {needed / GIB:.1f}; {who}"


class Driver(NamedTuple):
    """The NVIDIA driver's version, such as `580.65.06`, and the GPUs that CUDA shows to this process."""

    version: str
    gpus: tuple[Gpu, ...]


def read_driver() -> Driver | None:
    """Return the driver and its GPUs; None if there is no driver."""
    from ray._private.thirdparty import pynvml  # noqa: PLC0415  Ray takes a second to import

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    numbers = ",".join(str(number) for number in range(pynvml.nvmlDeviceGetCount()))
    gpus = []
    for number in os.environ.get(env.VISIBLE_GPUS, numbers).split(","):  # numbers or UUIDs
        with suppress(pynvml.NVMLError):  # CUDA would not see it either
            gpus.append(_read_gpu(pynvml, number.strip()))
    return Driver(pynvml.nvmlSystemGetDriverVersion(), tuple(gpus))


def _read_gpu(nvml: Any, number: str) -> Gpu:
    from ray._private.accelerators import NvidiaGPUAcceleratorManager  # noqa: PLC0415

    find = nvml.nvmlDeviceGetHandleByIndex if number.isdecimal() else nvml.nvmlDeviceGetHandleByUUID
    handle = find(int(number) if number.isdecimal() else number)
    name, memory = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetMemoryInfo(handle)
    running = []
    with suppress(nvml.NVMLError):  # unknown for a part of a GPU (MIG)
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    kind = str(NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(name))
    holders = "; ".join(_describe(each.pid, each.usedGpuMemory or 0) for each in running)
    return Gpu(f"GPU {number} ({name})", kind, memory.total, memory.free, holders)


def _describe(process: int, held: int) -> str:
    name = "of another container"  # it has no entry in /proc here
    with suppress(OSError):
        name = Path(f"/proc/{process}/comm").read_text(encoding="utf-8", errors="replace").strip()
    return f"process {process} ({name}) holds {held / GIB:.1f} GiB"
