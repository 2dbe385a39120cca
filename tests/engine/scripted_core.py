"""A fake of the engine core that generates given outputs, which vLLM's handlers get exactly so."""

import asyncio
from collections import deque
from itertools import accumulate
from typing import Any

from vllm.v1.engine import EngineCoreOutputs, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor

from serve_app.engine.continuing_core import delivered_count
from tests.engine.stub_engine_core import StubEngineCore


class ScriptedCore(StubEngineCore):
    """Answers every request with `script`, or with the rest of it behind the delivered tokens."""

    processor: OutputProcessor
    """The front end's."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[list[int]] = []
        """The tokens of each output. The last one ends the answer."""
        self.merges = False
        """Whether each token has its own step. The front end merges the steps of an output, as for a slow
        reader."""
        self._begins: deque[bool] = deque()
        """By step: whether it begins an output."""

    async def add_request_async(self, request: Any) -> None:
        self.requests.append(request)
        told = delivered_count(request.sampling_params)
        steps = []
        for output, end in zip(self.script, accumulate(map(len, self.script)), strict=True):
            left = output[max(0, len(output) - max(0, end - told)) :] if end > told else []
            parts = [[token] for token in left] if self.merges else [left] * bool(left)
            steps += parts
            self._begins += [number == 0 for number in range(len(parts))]
        self.put_steps(request, steps, FinishReason.STOP)

    async def get_output_async(self) -> EngineCoreOutputs:
        step = await super().get_output_async()
        if self._begins.popleft():
            while self._is_behind(step.outputs[0].request_id):
                await asyncio.sleep(0)
        return step

    def _is_behind(self, name: str) -> bool:
        """Whether the reader of the latest request must still take an output. Other readers may have gone."""
        state = self.processor.request_states.get(name)
        return name == self.requests[-1].request_id and state is not None and state.queue.output is not None
