"""One world: clients, faults and a fleet, all drawn from a seed."""

from __future__ import annotations

import asyncio
import time
import traceback
from random import Random
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams

from serve_app.engine.generate_operation import TokenTexts
from tests.simulation.checks import check_answers, check_quiet
from tests.simulation.client import Asked, Client
from tests.simulation.fleet import Engine, Ingress, prepare_front_ends
from tests.simulation.loop import SimulatedLoop

_UNIX_S = 1.7e9
_QUIET_S = 30.0
"""When the last client has gone, everything must be back at its start after so long."""
_WORDS = ("the sea", "is calm", "and grey", "waves", "roll over", "old stones", "while", "gulls cry", "海 🌊")


class World:
    """What the seed draws, and what happened."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        draw = self.draw = Random(f"world {seed}")
        self.faults: list[str] = []
        """What must always hold, and did not."""
        self.prompts: dict[str, list[int]] = {}
        self.step_s = draw.choice((0.002, 0.02, 0.2))
        self.engine: dict[str, Any] = {"max_num_seqs": draw.choice((1, 2, 4, 16))}
        self.limits: dict[str, Any] = {"max_ongoing_requests": draw.choice((2, 8, 32))}
        self.knobs: dict[str, Any] = {"drain_move_after_s": draw.choice((0.0, 1.0, None))}
        self.engines = draw.randint(1, 3)
        self.clients = [Client(self._asked(number), seed) for number in range(draw.randint(1, 12))]
        kinds = ("cut", "stall", "kill", "core", "drain")
        self.events = sorted(
            (draw.uniform(0.0, 6.0), draw.choice(kinds)) for _ in range(draw.choice((0, 1, 2, 4, 8)))
        )
        self.running: list[Engine] = []
        self.trace: list[str] = []
        """What arrived at each end of each connection, and when."""
        self.tokenizer: Any = None
        self._started = 0
        self._tasks: list[asyncio.Task[None]] = []

    def _asked(self, number: int) -> Asked:
        draw = self.draw
        text = " ".join(draw.choices(_WORDS, k=draw.randint(1, 20)))
        chats = draw.random() < 0.7
        body: dict[str, Any] = {
            "model": "tide",
            **({"messages": [{"role": "user", "content": text}]} if chats else {"prompt": text}),
            "n": draw.choice((1, 1, 1, 2, 3)),
            "max_tokens": draw.choice((1, 2, 5, 20, 60, 150)),
            "ignore_eos": True,
        }
        if draw.random() < 0.75:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        asked = Asked(f"c{number}", draw.choice((0.0, draw.uniform(0.0, 6.0))), body)
        if draw.random() < 0.25:
            asked.leaves = draw.choice(("abort", "close", "half-close"))
            asked.leaves_after_s = draw.choice((0.0, 0.01, 0.1, 1.0, 5.0)) * draw.random()
        if draw.random() < 0.2:
            asked.pauses_s = draw.choice((0.01, 0.5))
        return asked

    def __str__(self) -> str:
        return (
            f"{self.engines} engines {self.engine | self.limits | self.knobs} step {self.step_s} s, "
            f"{len(self.clients)} clients, {[(round(at, 3), kind) for at, kind in self.events]}"
        )

    async def run(self, loop: SimulatedLoop) -> None:
        """Let everything happen, and check what is left."""
        self.loop = loop
        self.ingress = Ingress(self, loop)
        for _ in range(self.engines):
            await self._start_engine(0.0)
        self.push()
        watching = loop.create_task(self._watch())
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(client.run(*self.ingress.address))
            group.create_task(self._cause_faults())
        await asyncio.gather(*self._tasks)
        await asyncio.sleep(_QUIET_S)
        watching.cancel()
        check_answers(self)
        check_quiet(self)
        self.ingress.stop()
        for engine in self.running:
            await engine.stop()
        await asyncio.sleep(_QUIET_S)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        self.faults += [f"a task is left: {task.get_coro()}" for task in left]
        self.faults += [f"a connection is left: {end.name}" for end in loop.network.open]
        self.faults += loop.errors

    def text_of(self, prompt: list[int], tokens: list[int]) -> str:
        """Return the text of an answer, token by token."""
        return "".join(TokenTexts(self.tokenizer, SamplingParams(), prompt, "whole").split(tokens))

    def push(self) -> None:
        """Have Ray tell the ingress which replicas run."""
        listed = {
            engine.name: {"address": engine.plane.address, "token": engine.plane.token, "identity": ""}
            for engine in self.running
        }
        self.ingress.replicas.update(listed)

    async def _start_engine(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._started += 1
        engine = Engine(self, f"engine-{self._started}")
        await engine.start()
        self.running.append(engine)

    async def _replace(self, engine: Engine, noticed_s: float) -> None:
        """Ray notices that a replica is gone, and starts another."""
        await asyncio.sleep(noticed_s)
        self.running.remove(engine)
        self.push()
        await self._start_engine(self.draw.choice((0.0, 1.0, 8.0)))
        self.push()
        await asyncio.sleep(self.draw.random())
        self.push()  # Ray may tell it twice

    async def _cause_faults(self) -> None:
        began = self.loop.time()
        for at_s, kind in self.events:
            await asyncio.sleep(max(0.0, began + at_s - self.loop.time()))
            engine = self.draw.choice(self.running) if self.running else None
            if engine is None or engine.fails:
                continue
            engine.fails = kind not in ("cut", "stall")
            self.loop.network.note(f"{kind} {engine.name}")
            self._tasks.append(self.loop.create_task(getattr(self, f"_{kind}")(engine)))

    async def _cut(self, engine: Engine) -> None:
        for end in self.loop.network.of(engine.name):
            end.cut()

    async def _stall(self, engine: Engine) -> None:
        for end in self.loop.network.of(engine.name):
            end.stall(self.draw.choice((0.3, 1.5, 4.0)))

    async def _kill(self, engine: Engine) -> None:
        await self._cut(engine)
        await engine.stop()
        await self._replace(engine, self.draw.uniform(0.0, 4.0))

    async def _core(self, engine: Engine) -> None:
        engine.core.die()
        await self._replace(engine, self.draw.uniform(2.0, 5.0))
        await engine.stop()

    async def _drain(self, engine: Engine) -> None:
        await self._replace(engine, 0.0)
        await engine.plane.drain()
        await engine.stop()

    async def _watch(self) -> None:
        """Find a request that waits beside a free replica."""
        replicas, queue, idle = self.ingress.replicas, self.ingress.admission.queue, 0
        limit = min(self.limits["max_ongoing_requests"], self.engine["max_num_seqs"])
        while True:
            free = any(not one.trouble and one.in_flight < limit for one in replicas.listed())
            idle = idle + 1 if free and queue.foreground else 0
            if idle == 20:
                self.faults.append("a request waits beside a free replica for 1 s")
            await asyncio.sleep(0.05)


def run_world(seed: str) -> World:
    """Run the world of a seed to its end. Its `faults` say what did not hold."""
    loop = SimulatedLoop(seed)
    world = World(seed)
    before = SimulatedLoop("front ends")
    before.run_until_complete(prepare_front_ends(world.engines + len(world.events)))
    before.close()
    with pytest.MonkeyPatch.context() as patch:
        for clock in ("perf_counter", "monotonic"):
            patch.setattr(time, clock, loop.time)
        patch.setattr(time, "time", lambda: _UNIX_S + loop.time())
        patch.setattr(time, "time_ns", lambda: int(1e9 * (_UNIX_S + loop.time())))
        try:
            loop.run_until_complete(world.run(loop))
        except Exception as error:
            world.faults.append("".join(traceback.format_exception(error)).replace("\n", " | "))
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(1.0))
        finally:
            loop.close()
    world.trace = loop.network.trace
    return world
