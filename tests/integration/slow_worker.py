"""A worker of vLLM that takes three times as long for each step."""

import time
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

SLOWER = 3.0


class SlowWorker(CPUWorker):  # type: ignore[misc]  # vLLM has no types
    """Takes three times as long for each step."""

    def execute_model(self, *arguments: Any, **more: Any) -> Any:
        began = time.perf_counter()
        output = super().execute_model(*arguments, **more)
        time.sleep((SLOWER - 1.0) * (time.perf_counter() - began))
        return output
