"""The NVIDIA GPUs of this machine, as their driver reports them (NVML). Nothing starts on the GPUs."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from serve_app import env

GIB = 1 << 30
MEMORY_WAIT_S = 300.0
"""An engine waits so long for its GPU's memory, and less than its start may stand still."""
_LOOK_S = 1.0


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


def lacking_memory(share: float) -> str:
    """Return which GPUs of this process lack `share` of their memory, and who holds it; "" if none does."""
    driver = read_driver()
    return "; ".join(filter(None, (gpu.lacks(share) for gpu in driver.gpus))) if driver else ""


def wait_for_memory(
    lacking: Callable[[], str],
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until `lacking` returns "".

    Ray gives a killed engine's GPU to the next engine at once, but the driver frees its memory later: after a
    hardware error (Xid) or a hang in NCCL, much later.

    Args:
        lacking: Returns which memory is not free, and who holds it.
        tell: Called with that at each look.
        clock: Seconds.
        sleep: Sleeps for seconds.

    Raises:
        RuntimeError: after `MEMORY_WAIT_S`, with what is lacking.
    """
    until = clock() + MEMORY_WAIT_S
    while lack := lacking():
        if clock() >= until:
            raise RuntimeError(f"after a wait of {MEMORY_WAIT_S:g} s {lack}")
        tell(f"waits for memory: {lack}")
        sleep(_LOOK_S)


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
