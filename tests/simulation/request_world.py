"""Worlds of the request path: clients, faults and a fleet, all drawn from a seed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from functools import partial
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.exceptions import DeploymentUnavailableError

from serve_app.cluster import bounded_call
from serve_app.engine import ingress_calls
from serve_app.ingress import engine_channel
from serve_app.settings.knobs import Knobs
from serve_app.wire import documents
from serve_app.wire.data_plane import CREDIT_BYTES
from tests.simulation.checks import LOSSES, SHORT_WAIT_S, check_answers, check_quiet, watch
from tests.simulation.client import ADAPTERS, LANES, Client, draw_asked
from tests.simulation.core import Oracle, Script
from tests.simulation.fleet import LORA, Engine, Ingress, prepare_front_ends
from tests.simulation.loop import SimulatedLoop
from tests.simulation.shrink import Kept
from tests.simulation.world import World
from tests.stub_kv import StubKv

QUIET_S = 30.0
"""When the last client has gone, everything must be back at its start after so long."""
THEMES = ("crowd", "turns")
"""What a world is mostly about: the first word of a seed such as `crowd-17`."""
_ONE_ENGINE = (*LOSSES, "stall", "drain", "down")


class RequestWorld(World):
    """What the seed draws, and what happened."""

    def __init__(self, kept_seed: str) -> None:
        kept = Kept.parse(kept_seed)
        super().__init__(kept.seed)
        seed, draw, theme = self.seed, self.draw, self.seed.partition("-")[0]
        self.step_s, self.burst = draw.choice((0.002, 0.02, 0.2)), draw.choice((1, 1, 1, 3, 8))
        self.engine = self._draw_engine()
        self.limits: dict[str, Any] = {"max_ongoing_requests": draw.choice((2, 8, 32))}
        self.knobs = [self._draw_knobs()]
        """Over time."""
        self.engines = draw.choice((0, 1, 1, 2, 2, 3, 5))
        self.ingress_replicas = draw.choice((1, 1, 2, 3))
        clients = draw.randint(1, draw.choice((6, 12, 12, 40))) + 10 * (theme in THEMES)
        events = draw.choice((0, 0, 1, 2, 4, 8))
        self.parser = draw.choice(("hermes", "hermes", "olmo3"))
        if self.parser == "olmo3":  # engines are lost within calls whose tokens are merged
            self.step_s, self.burst, self.engines, events = 0.2, draw.choice((3, 8)), 3, 8
        kinds = (*_ONE_ENGINE, "redeploy", "settings", "knobs")
        drawn = [(draw.uniform(0.0, 6.0), draw.choice(kinds)) for _ in range(events)]
        self.size = clients, events
        self.events = sorted(drawn[each] for each in kept.parts.get("e", range(events)))
        most_tokens = min(*kept.parts.get("t", ()), 600, 600 if self.step_s < 0.1 else 60)
        self.clients = [
            Client(draw_asked(seed, number, most_tokens, self.parser), seed)
            for number in kept.parts.get("c", range(clients))
        ]
        self.unread_adapters = draw.choice((0.0, 0.0, 0.0, 0.5))
        """How often the files of an adapter cannot be read."""
        self.ray_gives_up = draw.choice((None, None, None, DeploymentUnavailableError("engines")))
        self.pause_s = draw.choice((0.0, 2.0))
        """The longest pause of an engine's stream behind its last event."""
        self.credit = draw.choice((512, 4 << 10, CREDIT_BYTES, CREDIT_BYTES))
        """The bytes of a stream that an engine may send ahead of its client."""
        self.keys = self._draw_keys() if draw.random() < 0.5 else {}
        """The limits of each key, by its name; none on a server without keys."""
        if theme in THEMES:
            getattr(self, f"_draw_{theme}")()
        self._most_engines = self.engines + len(self.events) + 2
        """At once, those included that drain."""
        self.places = [self.engine["max_num_seqs"]]
        """Of an engine, over time."""
        self.buckets_stay = self.ingress_replicas == 1 and draw.random() < 0.5
        """Whether the quotas of keys are not filled again, so that each charge can be found."""
        self.identities = ["model-0"]
        self.running: list[Engine] = []
        self.starting = 0
        self.happened: list[tuple[float, str]] = []
        self.usage: Counter[tuple[str, str]] = Counter()
        scripts = {each.asked.name: each.asked.script for each in self.clients}
        self.oracle = Oracle(self.faults, scripts, parser=self.parser)
        self._started = count(1)
        self.alive: list[Engine] = []
        self._tasks: list[asyncio.Task[None]] = []

    def _draw_engine(self) -> dict[str, Any]:
        tokens, places = self.draw.choice((None, None, 48)), self.draw.choice((1, 2, 4, 16))
        return {"max_num_seqs": places, "max_num_batched_tokens": tokens}

    def _draw_knobs(self) -> Knobs:
        draw = self.draw
        return Knobs(
            drain_move_after_s=draw.choice((0.0, 1.0, None)),
            max_held_requests=draw.choice((2, 100, 100)),
            keep_alive_interval_s=draw.choice((0.2, 5.0, 15.0)),
            cold_wait_timeout_s=draw.choice((600.0, 600.0, SHORT_WAIT_S)),
            background_wait_timeout_s=draw.choice((86_400.0, 86_400.0, SHORT_WAIT_S)),
            prefill_groups=draw.random() < 0.5,
            standard_share=draw.choice((0.0, 0.2, 0.5, 1.0)),
            adapters=dict.fromkeys(ADAPTERS, "embedded"),
        )

    def _draw_keys(self) -> dict[str, dict[str, Any]]:
        draw = self.draw
        limits: dict[str, tuple[Any, ...]] = {
            "requests_per_minute": (None, None, 3, 20),
            "tokens_per_minute": (None, 300, 2000, 100_000),
            "concurrent_requests": (None, None, 2),
            "work_conserving": (False, False, True),
        }
        return {
            lane: {name: drawn for name, each in limits.items() if (drawn := draw.choice(each)) is not None}
            for lane in LANES
        }

    def _draw_crowd(self) -> None:
        """All lanes come to one engine with few places within 30 steps. Adapters block some sequences."""
        self.engine["max_num_seqs"] = self.draw.choice((2, 4))
        self.engine["lora"] = LORA | {"max_cached": 1}
        self.engines, self.limits["max_ongoing_requests"] = 1, 32
        self.keys = {lane: {"work_conserving": False} for lane in LANES}
        for each in self.clients:
            each.asked.at_s = self.draw.choice((0.0, 30.0)) * self.step_s * self.draw.random()
        if self.draw.random() < 0.5:  # only some of `standard`, beside short answers of `interactive`
            self.engine["max_num_seqs"] = 2
            self.knobs = [self.knobs[0].model_copy(update={"standard_share": 0.5})]
            for asked in [each.asked for each in self.clients if each.asked.key != "standard"]:
                asked.key, asked.body["model"] = "interactive", "tide"
                asked.script, asked.calls = Script(ends_at=2), 0

    def _draw_turns(self) -> None:
        """Clients of one key with few tokens come one after another."""
        self.keys = {lane: {"tokens_per_minute": 300, "work_conserving": False} for lane in LANES}
        pause_s = self.draw.choice((0.5, 2.0, 6.0))
        for number, each in enumerate(self.clients):
            each.asked.key, each.asked.at_s, each.asked.pauses_s = LANES[0], number * pause_s, 0.0

    def __str__(self) -> str:
        return (
            f"{self.ingress_replicas} ingress replicas, {self.engines} engines {self.engine | self.limits}, "
            f"step {self.step_s} s * {self.burst}, {len(self.clients)} clients, keys {self.keys}, "
            f"{[(round(at, 3), kind) for at, kind in self.events]}"
        )

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        before = SimulatedLoop("front ends")
        before.run_until_complete(prepare_front_ends(self._most_engines))
        before.close()
        super().patch(patch)
        patch.setattr(documents, "internal_kv", StubKv())
        patch.setattr(ingress_calls, "CREDIT_BYTES", self.credit)
        patch.setattr(engine_channel, "_CREDIT_STEP", self.credit // 4)
        draw = Random(f"threads {self.seed}")

        def thread(target: Any, args: Any, **_: Any) -> Any:
            """Return a thread whose function is a later step of the loop."""
            after_s = draw.choice((0.001, 0.1, 1.5)) * draw.random()
            return SimpleNamespace(start=partial(self.loop.call_later, after_s, target, *args))

        patch.setattr(bounded_call, "threading", SimpleNamespace(Thread=thread, Lock=threading.Lock))

    async def run(self) -> None:
        loop = self.loop
        keys = [{"name": lane, "key": lane, "lane": lane, **each} for lane, each in self.keys.items()]
        (self.folder / "keys.json").write_text(json.dumps({"keys": keys}))
        self.ingresses = [
            Ingress(self, loop, f"ingress-{number + 1}") for number in range(self.ingress_replicas)
        ]
        for _ in range(2 if self.keys else 0):  # before the first request, as at a start
            for each in self.ingresses:
                each.quotas.share(*each.reports.exchange(each.quotas.demands()))
        for _ in range(self.engines):
            await self._start_engine(0.0)
        watching = [loop.create_task(watch(self)), loop.create_task(self._start_needed_engines())]
        addresses = [each.address for each in self.ingresses]
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(client.run(addresses))
            group.create_task(self._cause_faults())
        while (await asyncio.sleep(QUIET_S)) or not all(task.done() for task in self._tasks):
            await asyncio.gather(*self._tasks)
        for task in watching:
            task.cancel()
        check_quiet(self)
        for ingress in self.ingresses:
            ingress.stop()
        for engine in list(self.running):
            await self._stop(engine)
        check_answers(self)
        await asyncio.sleep(QUIET_S)

    def push(self) -> None:
        """Have Ray tell each ingress which replicas run: soon, late or twice, and in any order."""
        for ingress in self.ingresses:
            listed = {engine.name: engine.metadata(ingress.name) for engine in self.running}
            for _ in range(self.draw.choice((1, 1, 2))):
                late_s = self.draw.choice((0.0, 0.05, 1.0)) * self.draw.random()
                self.loop.call_later(late_s, ingress.replicas.update, listed)
        self.loop.call_later(1.0, self._push_truth)

    def _push_truth(self) -> None:
        for ingress in self.ingresses:
            ingress.replicas.update({engine.name: engine.metadata(ingress.name) for engine in self.running})

    async def _start_engine(self, after_s: float) -> None:
        self.starting += 1
        await asyncio.sleep(after_s)
        while len(self.alive) >= self._most_engines:
            await asyncio.sleep(0.5)
        self.starting -= 1
        engine = Engine(self, f"engine-{next(self._started)}")
        self.alive.append(engine)
        await engine.start()
        self.running.append(engine)
        self.push()

    def values_of(self, knob: str) -> list[Any]:
        """Return the values of a knob over time."""
        return [getattr(each, knob) for each in self.knobs]

    async def _stop(self, engine: Engine) -> None:
        await engine.stop()
        self.alive.remove(engine)

    async def _start_needed_engines(self) -> None:
        """Start the first engine for queued requests, and replace engines that died of a request."""
        while True:
            for engine in self.running:
                if engine.core.dead and not engine.fails:
                    engine.fails = True
                    self._tasks.append(self.loop.create_task(self._core(engine)))
            queued = any(len(ingress.admission.queue) for ingress in self.ingresses)
            if queued and not self.running and not self.starting:
                await self._start_engine(self.draw.choice((0.1, 2.0, 8.0)))
            await asyncio.sleep(0.25)

    async def _replace(self, engine: Engine, noticed_s: float) -> None:
        """Ray notices that a replica is gone, and starts another."""
        await asyncio.sleep(noticed_s)
        self.running.remove(engine)
        self.push()
        await self._start_engine(self.draw.choice((0.0, 1.0, 8.0)))

    async def _cause_faults(self) -> None:
        began = self.loop.time()
        for at_s, kind in self.events:
            await asyncio.sleep(max(0.0, began + at_s - self.loop.time()))
            free = [engine for engine in self.running if not engine.fails]
            if kind in _ONE_ENGINE and not free:
                continue
            self.happened.append((self.loop.time(), kind))
            about = [self.draw.choice(free)] if kind in _ONE_ENGINE else []
            for engine in about:
                engine.fails = kind not in ("cut", "stall", "partition")
            self.loop.network.note(f"{kind} {[engine.name for engine in about]}")
            self._tasks.append(self.loop.create_task(getattr(self, f"_{kind}")(*about)))

    async def _cut(self, engine: Engine) -> None:
        self.loop.network.cut(engine.name, self.draw.choice((0, self.draw.randint(1, 60))))

    async def _stall(self, engine: Engine) -> None:
        self.loop.network.hold(engine.name, self.draw.choice((0.2, 0.8)))

    async def _partition(self, engine: Engine) -> None:
        ingress = self.draw.choice(self.ingresses)
        self.loop.network.hold(f"{engine.name}@{ingress.name}", self.draw.choice((1.5, 4.0, 15.0)))

    async def _hang(self, engine: Engine) -> None:
        """Stop the process, which goes on later, or which Ray kills after its health checks."""
        still_s = self.draw.choice((2.0, 6.0, 18.0))
        self.loop.network.hold(engine.name, still_s)
        engine.core.stop()
        await asyncio.sleep(still_s)
        if still_s == 18.0:
            await self._kill(engine, 0.0)
        else:
            engine.core.go_on()
            engine.fails = False

    async def _kill(self, engine: Engine, noticed_s: float | None = None) -> None:
        self.loop.network.cut(engine.name)
        await self._stop(engine)
        await self._replace(engine, self.draw.uniform(0.0, 4.0) if noticed_s is None else noticed_s)

    async def _core(self, engine: Engine) -> None:
        engine.core.die()
        await self._replace(engine, self.draw.uniform(2.0, 5.0))
        await self._stop(engine)

    async def _drain(self, engine: Engine) -> None:
        await self._replace(engine, 0.0)
        await engine.plane.drain()
        await self._stop(engine)

    async def _down(self, engine: Engine) -> None:
        """The policy removes a replica, perhaps the last one."""
        self.running.remove(engine)
        self.push()
        await engine.plane.drain()
        await self._stop(engine)

    async def _redeploy(self) -> None:
        """Replace all engines by those of another model."""
        self.identities.append(f"model-{len(self.identities)}")
        await self._renew_engines()

    async def _settings(self) -> None:
        """Replace all engines by those of the same model with other settings."""
        self.engine = self._draw_engine()
        self.places.append(self.engine["max_num_seqs"])
        await self._renew_engines()

    async def _renew_engines(self) -> None:
        former = [each for each in self.running if not each.fails]
        for engine in former:
            engine.fails = True
        for engine in former:
            await self._start_engine(self.draw.choice((0.0, 1.0)))
            self._tasks.append(self.loop.create_task(self._down(engine)))

    async def _knobs(self) -> None:
        self.knobs.append(self._draw_knobs())
        for ingress in self.ingresses:
            await asyncio.sleep(self.draw.random())
            ingress.knobs = self.knobs[-1]
