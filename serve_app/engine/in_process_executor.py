"""vLLM's in-process executor, with one thread for all of its process groups."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d
from vllm.v1.executor.uniproc_executor import UniProcExecutor


class InProcessExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM has no types
    """Runs the model in the process of the engine core."""

    def _init_executor(self) -> None:
        with one_gloo_device():
            super()._init_executor()

    def shutdown(self) -> None:
        """Release the model without a search for garbage, for the process of the engine core ends now.

        vLLM collects it three times, and the interpreter once more when it ends, each time all that a zygote
        has imported: 4.5 s until a drained replica gave back its GPU, of which 0.2 remain.
        """
        gc.freeze()
        gc.unfreeze = lambda: None
        super().shutdown()


@contextmanager
def one_gloo_device() -> Iterator[None]:
    """Within the block, all process groups of gloo that are made get the same device.

    vLLM makes thirteen groups, for a single process too, and torch makes a device for each, whose thread
    wakes up a hundred times a second as long as the group lives: together 0.017 of a core with nothing to do.
    """
    original = distributed_c10d.ProcessGroupGloo
    device = original.create_default_device()

    class OneDevice(original):  # type: ignore[misc, valid-type]
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            options = original._Options()  # type: ignore[attr-defined]
            options._devices = [device]
            options._timeout = timeout
            super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupGloo = OneDevice  # type: ignore[misc]
    try:
        yield
    finally:
        distributed_c10d.ProcessGroupGloo = original  # type: ignore[misc]
