"""The NVIDIA GPUs of this machine, as their driver reports them (NVML). Nothing starts on the GPUs."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

GIB = 1 << 30
MEMORY_WAIT_S = 300.0
_LOOK_S = 1.0


class Gpu(NamedTuple):
    """One GPU, such as `GPU 0 (NVIDIA H100 80GB HBM3)`, of Ray's type `H100`, and who holds its memory."""

    name: str
    kind: str
    total_bytes: int
    free_bytes: int
    holders: str = ""

    def lacks(self, share: float) -> str:
        """Return why an engine cannot take `share` of the memory, as vLLM requires, or "" if it can."""
        if self.free_bytes >= share * self.total_bytes:
            return ""
        free, total = self.free_bytes / GIB, self.total_bytes / GIB
        who = self.holders or "no process is named, so it is in another container"
        has = f"{self.name} has {free:.1f} of {total:.1f} GiB free"
        return f"{has}, and an engine takes {share * total:.1f}; {who}"


class Driver(NamedTuple):
    """The version of the NVIDIA driver, such as `580.65.06`, and the GPUs that CUDA shows to this process."""

    version: str
    gpus: tuple[Gpu, ...]


def read_driver(every: bool = False) -> Driver | None:
    """Return the driver and its GPUs, if `every` those that CUDA does not show too; None without a driver."""
    from ray._private.thirdparty import pynvml  # noqa: PLC0415  Ray takes a second to import

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    numbers = ",".join(str(number) for number in range(pynvml.nvmlDeviceGetCount()))
    shown = numbers if every else os.environ.get("CUDA_VISIBLE_DEVICES", numbers)
    gpus = []
    for number in shown.split(","):  # numbers or UUIDs
        with suppress(pynvml.NVMLError):  # CUDA would not see it either
            gpus.append(_read_gpu(pynvml, number.strip()))
    return Driver(pynvml.nvmlSystemGetDriverVersion(), tuple(gpus))


def _read_gpu(nvml: Any, number: str) -> Gpu:
    from ray._private.accelerators import NvidiaGPUAcceleratorManager  # noqa: PLC0415

    find = nvml.nvmlDeviceGetHandleByIndex if number.isdecimal() else nvml.nvmlDeviceGetHandleByUUID
    handle, running = find(int(number) if number.isdecimal() else number), []
    name, memory = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetMemoryInfo(handle)
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


def lacking_memory(share: float, count: int) -> str:
    """Return which GPUs lack `share` of their memory, and who holds it; "" if `count` GPUs have it.

    With several GPUs, an engine replica does not know which of the machine's GPUs its workers will get.
    """
    driver = read_driver(every=count > 1)
    lacks = [gpu.lacks(share) for gpu in driver.gpus] if driver is not None else []
    return "" if lacks.count("") >= min(count, len(lacks)) else "; ".join(filter(None, lacks))


def wait_for_memory(
    lacking: Callable[[], str],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until `lacking` returns "". Raises RuntimeError with what is lacking after `MEMORY_WAIT_S`.

    Ray gives a killed engine's GPU to the next engine at once, but the driver frees its memory later: after a
    hardware error (Xid) or a hang in NCCL, much later.
    """
    until = clock() + MEMORY_WAIT_S
    while lack := lacking():
        if clock() >= until:
            raise RuntimeError(f"after a wait of {MEMORY_WAIT_S:g} s {lack}")
        sleep(_LOOK_S)
