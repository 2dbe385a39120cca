"""One thread for all of torch's gloo process groups in a process, and the permission to use AMX."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import distributed_c10d


@contextmanager
def one_gloo_device() -> Iterator[None]:
    """Within the block, all new process groups of gloo share one device.

    vLLM makes 13 groups even for a single process. Torch makes a device for each group. The device's thread
    wakes 100 times a second while the group lives. Together that takes 0.017 of a core in an idle engine.
    """
    original = distributed_c10d.ProcessGroupGloo
    device = original.create_default_device()

    class OneDevice(original):  # type: ignore[misc, valid-type]
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            options = original._Options()
            options._devices = [device]
            options._timeout = timeout
            super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupGloo = OneDevice
    try:
        yield
    finally:
        distributed_c10d.ProcessGroupGloo = original


def permit_amx() -> None:
    """Ask the kernel to let this process and its forks use AMX. Without AMX, this does nothing.

    vLLM's kernels for bfloat16 use AMX and do not ask. A process in which oneDNN has not asked first, as with
    small models of Qwen3, Qwen2 and Gemma 3, ends with an illegal instruction.
    """
    with suppress(AttributeError):  # another release of torch
        torch.cpu._init_amx()
