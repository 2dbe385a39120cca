"""An engine core with vLLM's scheduler, and tokens that depend on the model and on all tokens before them."""

from __future__ import annotations

import asyncio
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
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


@dataclass
class Script:
    """The part of an answer that is the same for all models."""

    begins: str = ""
    ends_at: int | None = None
    """After so many tokens the model ends its answer; None if it goes on. 0: after `begins`."""
    ends_engines: bool = False
    """Whether each engine that runs the request dies of it."""


@dataclass
class Oracle:
    """Knows the next token of each answer, and the prompts that front ends have sent."""

    faults: list[str]
    """Gets what must not come from a front end."""
    scripts: dict[str, Script] = field(default_factory=dict)
    """By the name of a client's request."""
    prompts: dict[str, list[int]] = field(default_factory=dict)
    deaths: list[tuple[float, str]] = field(default_factory=list)
    """When an engine died of a request, and the request's name."""
    parser: str = "hermes"
    tokenizer: Any = None
    _begins: dict[str, list[int]] = field(default_factory=dict)
    _digests: dict[str, int] = field(default_factory=dict)

    def note_prompt(self, name: str, prompt: list[int]) -> None:
        """Remember a prompt, which must be the same on each engine."""
        if self.prompts.setdefault(name, prompt) != prompt:
            self.faults.append(f"{name}: another prompt than before")
        self._digests.setdefault(name, xxh3_64_intdigest(repr(prompt).encode()))
        if name not in self._begins:
            begins = self.scripts[name].begins
            self._begins[name] = self.tokenizer.encode(begins, add_special_tokens=False) if begins else []

    def next(self, name: str, model: str, sequence: int, before: Sequence[int]) -> int:
        """Return the token that every core of a model generates after the outputs `before`."""
        begins, ends_at, count = self._begins[name], self.scripts[name].ends_at, len(before)
        if ends_at is not None and count == (ends_at or len(begins)):
            return int(self.tokenizer.eos_token_id)
        if count < len(begins):
            return begins[count]
        seen = f"{model} {sequence} {count} {list(before[-4:])}"
        return _FIRST + xxh3_64_intdigest(seen.encode(), self._digests[name]) % _TOKENS

    def whole(self, name: str, model: str, sequence: int, most: int) -> list[int]:
        """Return the tokens of an answer that one core generates alone."""
        tokens: list[int] = []
        while len(tokens) < most and (not tokens or tokens[-1] != self.tokenizer.eos_token_id):
            tokens.append(self.next(name, model, sequence, tokens))
        return tokens


@cache
def _client_and_sequence(name: str) -> tuple[str, int]:
    """Return the name of a client's request, and the number of a sequence, from its name in vLLM's engine."""
    found = re.match(r"(?:(\d+)_)?.*?(sim\d+)", name)
    assert found, name
    return found[2], int(found[1] or 0)


class _Scheduler(SimulatedCore):
    """The scheduler, its steps, and the outputs that the front end has not got yet."""

    def __init__(self, oracle: Oracle, identity: str, **model: Any) -> None:
        super().__init__(**model)
        self.made: list[EngineCoreOutputs] = []
        self._oracle, self._identity = oracle, identity

    def sample(self, request: Request) -> int:
        name, sequence = _client_and_sequence(request.request_id)
        return self._oracle.next(name, self.model_of(request), sequence, request.output_token_ids)

    def model_of(self, request: Any) -> str:
        """Return the weights that compute a request: the model, and perhaps an adapter."""
        return self._identity + (f"+{request.lora_request.lora_name}" if request.lora_request else "")

    def emit(self, outputs: EngineCoreOutputs) -> None:
        self.made.append(outputs)

    def report(self, fault: str) -> None:
        self._oracle.faults.append(fault)


class Core(StubEngineCore):
    """Steps every `step_s` seconds while it has sequences. It stands where vLLM has a process.

    A front end costs 0.3 s, so it gets a new life in each world: `begin`.
    """

    def begin(self, oracle: Oracle, identity: str, step_s: float, burst: int, **model: Any) -> None:
        """Be a new core. The front end gets the outputs of `burst` steps at once, and merges their tokens."""
        self.resources = Namespace(engine_dead=False)
        self._scheduler = _Scheduler(oracle, identity, **model)
        self._oracle, self._step_s, self._burst = oracle, step_s, burst
        self._outputs: asyncio.Queue[EngineCoreOutputs | Exception] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None
        self._steps_left = burst
        self.stopped = False

    @property
    def dead(self) -> bool:
        return bool(self.resources.engine_dead)

    @property
    def names(self) -> set[str]:
        """The clients' requests whose sequences the scheduler has."""
        return {_client_and_sequence(name)[0] for name in self._scheduler.scheduler.requests}

    @property
    def unfinished(self) -> int:
        """The sequences that the scheduler has."""
        return int(self._scheduler.scheduler.get_num_unfinished_requests())

    async def add_request_async(self, request: Any) -> None:
        count = delivered_count(request.sampling_params)
        ids = request.prompt_token_ids
        prompt, delivered = (ids[:-count], ids[-count:]) if count else (ids, [])
        name, number = _client_and_sequence(request.request_id)
        self._oracle.note_prompt(name, prompt)
        if delivered != self._oracle.whole(name, self._scheduler.model_of(request), number, count):
            why = f"the {count} delivered tokens are not those that a core of this model generates"
            self._oracle.faults.append(f"{request.request_id}: {why}")
        self._scheduler.take(Request.from_engine_core_request(request, self._scheduler.hasher))
        self._start()
        if self._oracle.scripts[name].ends_engines:
            asyncio.get_running_loop().call_later(2.5 * self._step_s, self._die_of, name)

    def _die_of(self, name: str) -> None:
        if not self.dead and not self.stopped:
            self._oracle.deaths.append((asyncio.get_running_loop().time(), name))
            self.die()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self._scheduler.abort(request_ids)

    async def add_lora_async(self, _: Any) -> bool:
        await asyncio.sleep(self._step_s)
        if self.dead:
            raise EngineDeadError
        return True

    remove_lora_async = add_lora_async

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
            self._timer = None

    def go_on(self) -> None:
        """Take steps again."""
        self.stopped = self.dead
        self._start()

    def _start(self) -> None:
        if self._timer is None and not self.stopped:
            self._timer = asyncio.get_running_loop().call_later(self._step_s, self._step)

    def _step(self) -> None:
        self._timer = None
        if self.unfinished:
            self._scheduler.step()
            self._steps_left -= 1
            if not self._steps_left or not self.unfinished:
                self._steps_left = self._burst
                for outputs in self._scheduler.made:
                    self._outputs.put_nowait(outputs)
                self._scheduler.made.clear()
            self._start()
