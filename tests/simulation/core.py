"""An engine core with vLLM's scheduler, and tokens that depend on all tokens before them."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.request import Request
from xxhash import xxh3_64_intdigest

from serve_app.engine.continuing_core import delivered_count
from tests.engine.simulated_core import SimulatedCore
from tests.engine.stub_engine_core import StubEngineCore

_FIRST, _TOKENS = 300, 1700
"""The tokens that are generated: none of them is special."""


def next_token(prompt: Sequence[int], before: Sequence[int], sequence: int) -> int:
    """Return the token that every core generates after `prompt` and the outputs `before`."""
    seen = ",".join(map(str, (*prompt, -1, *before))).encode()
    return _FIRST + xxh3_64_intdigest(seen, sequence) % _TOKENS


def whole_answer(prompt: Sequence[int], count: int, sequence: int) -> list[int]:
    """Return the tokens of an answer that one core generates alone."""
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(next_token(prompt, tokens, sequence))
    return tokens


def sequence_of(name: str) -> int:
    """Return the number of a sequence of its request, from the name in vLLM's engine."""
    number = name.partition("_")[0]
    return int(number) if number.isdigit() else 0


class _Scheduler(SimulatedCore):
    """The scheduler, its steps, and the outputs of the last one."""

    def __init__(self, **model: Any) -> None:
        super().__init__(**model)
        self.made: list[EngineCoreOutputs] = []

    def sample(self, request: Request) -> int:
        return next_token(request.prompt_token_ids, request.output_token_ids, sequence_of(request.request_id))

    def emit(self, outputs: EngineCoreOutputs) -> None:
        self.made.append(outputs)


class Core(StubEngineCore):
    """Steps every `step_s` seconds while it has sequences. It stands where vLLM has a process.

    A front end costs 0.3 s, so it gets a new life in each world: `begin`.
    """

    def begin(self, step_s: float, prompts: dict[str, list[int]], faults: list[str], **model: Any) -> None:
        """Be a new core.

        Args:
            step_s: The time of a step.
            prompts: By name of a client's request: its prompt, for the world's checks.
            faults: Gets what must not come from a front end.
            model: Settings of the model.
        """
        self.resources = Namespace(engine_dead=False)
        self._scheduler = _Scheduler(**model)
        self._step_s = step_s
        self._prompts = prompts
        self._faults = faults
        self._outputs: asyncio.Queue[EngineCoreOutputs | Exception] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None
        self.stopped = False

    @property
    def dead(self) -> bool:
        """Whether it has died."""
        return bool(self.resources.engine_dead)

    @property
    def unfinished(self) -> int:
        """The sequences that the scheduler has."""
        return int(self._scheduler.scheduler.get_num_unfinished_requests())

    async def add_request_async(self, request: Any) -> None:
        count = delivered_count(request.sampling_params)
        ids = request.prompt_token_ids
        prompt, delivered = (ids[:-count], ids[-count:]) if count else (ids, [])
        name, number = request.request_id, sequence_of(request.request_id)
        asked = name.partition("cmpl-")[2].split("-")[0]
        if self._prompts.setdefault(asked, prompt) != prompt:
            self._faults.append(f"{name}: another prompt than before")
        if delivered != whole_answer(prompt, count, number):
            self._faults.append(f"{name}: the {count} delivered tokens are not those that a core generated")
        self._scheduler.take(Request.from_engine_core_request(request, self._scheduler.hasher))
        self._start()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self._scheduler.abort(request_ids)

    async def get_output_async(self) -> EngineCoreOutputs:
        output = await self._outputs.get()
        if isinstance(output, Exception):
            raise output
        return output

    def die(self) -> None:
        """End as a core's process ends."""
        self.resources.engine_dead = True
        self.stop()
        self._outputs.put_nowait(EngineDeadError())

    def stop(self) -> None:
        """Take no further step."""
        self.stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        if self._timer is None and not self.stopped:
            self._timer = asyncio.get_running_loop().call_later(self._step_s, self._step)

    def _step(self) -> None:
        self._timer = None
        if self.unfinished:
            self._scheduler.step()
            for outputs in self._scheduler.made:
                self._outputs.put_nowait(outputs)
            self._scheduler.made.clear()
            self._start()
