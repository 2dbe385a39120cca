"""Worlds of the policy: a fleet of coroutines, a controller that restarts, and documents that come late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, cast

import pytest

from serve_app.cluster.pending_pods import PendingPods
from serve_app.controller import serve_policy
from serve_app.controller.document_exchange import DocumentExchange
from serve_app.settings.knobs import IngressKnobs
from serve_app.settings.tree import INGRESS
from serve_app.wire import documents, phases
from serve_app.wire.documents import KNOBS, LEARNED, put_document
from serve_app.wire.ingress_reports import forget_report, publish_report
from serve_app.wire.own_clock import SteadyTime
from serve_app.wire.phases import forget_phase, publish_phase
from serve_app.wire.served_models import ServedApplication, ServedModel
from serve_app.wire.signals import EngineSignals, IngressSignals, ingress_key
from tests.controller.fake_cluster import FakeCluster
from tests.ingress.test_knob_deployer import FakeController
from tests.policy.fake_application import APP, Clock, FakeApplication
from tests.simulation.world import CALM_S, Process, World, current, step
from tests.stub_kv import StubKv, stored

_TIDE = "Engine-tide"
_PLACES = 4
_END_S = 160.0
_TICK_S = 0.5
_INGRESS = IngressKnobs(min_replicas=2, max_replicas=2)


class _Kv(StubKv):
    """Ray's key-value store, which may be away."""

    def _available(self) -> None:
        step("gcs")


class _Clock(Clock):
    """The controller's clock; a report that comes late has an earlier stamp."""

    def __init__(self, world: World) -> None:
        self._steady = SteadyTime(world.wall, world.loop.time)
        self.late_s = 0.0

    @property
    def now(self) -> float:  # type: ignore[override]  # it moves with the loop
        return self._steady() - self.late_s

    @now.setter
    def now(self, _: float) -> None:
        pass


class _Application(FakeApplication):
    """An application of which a new controller has no report yet."""

    def reports(self, *_: object, **__: object) -> None:
        pass


class FleetWorld(World):
    """One model with up to four replicas, two ingress replicas and their clients."""

    def __init__(self, seed: str) -> None:
        rare = (0.0, 0.0, 0.02)
        super().__init__(seed, kill=(0.0, 0.001, 0.01), gcs=(0.0, 0.01, 0.1), report=(0.0, 0.3), engine=rare)
        draw = self.draw
        self.start_s = draw.choice((1.0, 5.0, 25.0))
        self.knobs: dict[str, Any] = {
            "min_replicas": draw.choice((0, 0, 1)),
            "max_replicas": draw.choice((1, 2, 4)),
            "downscale_to_zero_delay_s": draw.choice((3.0, 15.0)),
        }
        times = [draw.uniform(0.0, 20.0), draw.uniform(30.0, 120.0)]
        arrivals = [at + draw.expovariate(0.5) for at in times for _ in range(draw.choice((1, 5, 20)))]
        self.arrivals = sorted(arrivals)
        self.kv = _Kv()
        self.controller: FakeController
        self.target = self.ready = self.starting = 0
        self.waiting: list[tuple[float, int]] = []
        """When each waiting request came, and to which ingress replica."""
        self.running: list[int] = [0] * 10
        self.arrived, self.finished = [0, 0], [0] * 10
        self.waits_s: list[float] = []
        self.app: FakeApplication | None = None
        self.clock: _Clock
        self.steps_learned = 0.0
        self.most = self.knobs["max_replicas"]
        self.changed: dict[str, float] = {}
        self._over = asyncio.Event()

    def __str__(self) -> str:
        return f"{self.rates} {self.knobs} start {self.start_s} s, {len(self.arrivals)} requests"

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        super().patch(patch)
        patch.setattr(documents, "internal_kv", self.kv)
        patch.setattr(phases, "list_named_actors", self.kv.list_named_actors)

    async def run(self) -> None:
        self.controller = FakeController(replicas=2)
        self.controller.pause = lambda: asyncio.sleep(self.draw.expovariate(5.0))
        self.controller.deploy({"autoscaling": {"tide": self.knobs}})
        always = [self._control, self._scale, self._look, *[lambda n=n: self._publish(n) for n in (0, 1)]]
        always += [lambda n=n: self._report(n) for n in (0, 1)]
        tasks = [self.loop.create_task(self._always(each)) for each in always]
        async with asyncio.TaskGroup() as group:
            for number in (0, 1):
                group.create_task(self._change_knobs(number))
            for number, at_s in enumerate(self.arrivals):
                group.create_task(self._request(at_s, number % 2))
        await asyncio.sleep(max(0.0, 1000.0 + _END_S - self.loop.time()))
        self._over.set()
        await asyncio.gather(*tasks)
        await asyncio.sleep(60.0)  # the last starts end
        bound_s = 2 * self.start_s + (20.0 if not any(self.rates.values()) else 90.0)
        if max(self.waits_s) > bound_s:
            self.faults.append(f"a request waited {max(self.waits_s):.1f} s, more than {bound_s} s")
        for live in self.controller.replicas:
            lost = {name for name, value in self.changed.items() if getattr(live.of("tide"), name) != value}
            self.faults += [f"knobs are lost: {sorted(lost)}"] * bool(lost)

    async def _always(self, work: Callable[[], Awaitable[None]]) -> None:
        while not self._over.is_set():
            await work()

    # The controller

    async def _control(self) -> None:
        """Live as one controller: Ray's autoscaling state, the policy, and the thread of its documents."""
        process = Process(self)
        current.set(process)
        clock = self.clock = _Clock(self)
        cluster = FakeCluster()
        mailbox = DocumentExchange(APP, cluster.read_nodes, cast(PendingPods, cluster))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(serve_policy, "SteadyTime", lambda: clock.time)
            models = {"tide": self.controller.live.of("tide")}
            app = _Application(clock, models, targets={INGRESS: 2, "tide": self.target}, ingress=_INGRESS)
        app.policy.mailbox = mailbox
        app.run(_TIDE, self.ready)
        self.app = app

        async def exchange() -> None:
            while not process.died.is_set():
                await asyncio.to_thread(mailbox.turn, clock.now)
                await asyncio.sleep(0.5)

        thread = self.loop.create_task(exchange())
        while not (process.died.is_set() or self._over.is_set()):
            before = self.target
            self.target = app.tick()[_TIDE]
            if self.target != before:
                self.loop.network.note(
                    f"{before} -> {self.target}, {len(self.waiting)} wait, {self.ready} ready"
                )
                self._check_target(before)
            await asyncio.sleep(_TICK_S)
            if self.fails("report"):
                process.ahead_s = self.draw.choice((-20.0, 0.0, 20.0))
        self.app = None
        process.died.set()
        await asyncio.gather(thread, return_exceptions=True)
        if not self._over.is_set():
            await asyncio.sleep(self.draw.choice((0.5, 5.0)))

    def _check_target(self, before: int) -> None:
        longest_s = max((self.loop.time() - at for at, _ in self.waiting), default=0.0)
        if self.target > max(self.most, before):
            self.faults.append(f"the target is {self.target}, more than {self.most}")
        if not self.target and (longest_s > 12.0 or self.knobs["min_replicas"]):
            self.faults.append(f"the target is 0 while a request has waited {longest_s:.1f} s")

    # The fleet

    async def _scale(self) -> None:
        """Start and stop engine replicas as the controller wants."""
        current.set(None)
        if self.ready + self.starting < self.target:
            self.starting += 1
            self.loop.create_task(self._start(f"e{len(self.kv.replicas)}"))
        elif self.ready > self.target or (self.ready and self.fails("engine")):
            self.ready -= 1
            if self.app is not None:
                self.app.run(_TIDE, self.ready)
        while self.waiting and (free := [n for n in range(self.ready) if self.running[n] < _PLACES]):
            at, _ = self.waiting.pop(0)
            self.waits_s.append(self.loop.time() - at)
            self.loop.create_task(self._serve(free[0]))
        await asyncio.sleep(_TICK_S)

    async def _start(self, name: str) -> None:
        self.kv.replicas.add((APP, _TIDE, name))
        phase = {"phase": "weights", "since": self.wall(), "durations_s": {}, "warm_node": True}
        publish_phase(APP, _TIDE, name, documents.json.dumps(phase))
        await asyncio.sleep(self.start_s)
        phase |= {"phase": "ready", "since": self.wall(), "durations_s": {"weights": self.start_s}}
        publish_phase(APP, _TIDE, name, documents.json.dumps(phase))
        self.starting -= 1
        self.ready += 1
        if self.app is not None:
            self.app.run(_TIDE, self.ready)
        await asyncio.sleep(30.0)
        forget_phase(APP, _TIDE, name)

    async def _serve(self, engine: int) -> None:
        self.running[engine] += 1
        await asyncio.sleep(self.draw.uniform(0.5, 3.0))
        self.running[engine] -= 1
        self.finished[engine] += 1

    async def _request(self, at_s: float, ingress: int) -> None:
        await asyncio.sleep(at_s)
        self.arrived[ingress] += 1
        self.waiting.append((self.loop.time(), ingress))

    # Ingress replicas

    async def _report(self, number: int) -> None:
        """Report to Ray once a second: an ingress replica, and every second engine replica."""
        for _ in range(0 if self.fails("report") else self.draw.choice((1, 1, 2))):
            if (app := self.app) is None:
                break
            self.clock.late_s = self.draw.choice((0.0, 3.0)) if self.fails("report") else 0.0
            app.report(INGRESS, self._said(number), number)
            for engine in range(number, self.ready, 2):
                app.report(_TIDE, asdict(self._engine(engine)), engine)
            self.clock.late_s = 0.0
        await asyncio.sleep(1.0)

    def _said(self, number: int) -> dict[str, float]:
        held = [self.loop.time() - at for at, ingress in self.waiting if ingress == number]
        count = 0 if self.ready else len(held)
        ages = (max(held), min(held)) if count else (0.0, 0.0)
        arrived = self.arrived[number]
        said = asdict(IngressSignals(arrived, 400.0 * arrived, count, 400.0 * count, *ages))
        return {"ongoing_requests": 0.0} | {ingress_key(_TIDE, name): said[name] for name in said}

    def _engine(self, number: int) -> EngineSignals:
        running, done = self.running[number], self.finished[number]
        work = {"steps": 50.0, "step_s": 0.02, "step_batch": float(running)} if running else {}
        return EngineSignals(
            running_requests=running,
            waiting_requests=0 if number else len(self.waiting),
            kv_cache_tokens=2e5,
            prompt_tokens_total=100.0 * done,
            finished_requests_total=done,
            finished_prompt_tokens_total=100.0 * done,
            finished_generation_tokens_total=50.0 * done,
            **work,
        )

    async def _publish(self, number: int) -> None:
        """Write an ingress replica's knobs and its queued requests."""
        current.set(Process(self, mortal=False))
        live = self.controller.replicas[number]
        models = {_TIDE: ServedModel("tide", _TIDE, live.of("tide"), {"GPU": 1.0})}
        served = ServedApplication(models, _INGRESS, zygote=False)
        queued = not self.ready and any(ingress == number for _, ingress in self.waiting)
        said, name = self._said(number), f"{INGRESS}-{number}"
        for each in (
            lambda: put_document(KNOBS, APP, served.document(self.wall())),
            lambda: publish_report(APP, name, said, self.wall()) if queued else forget_report(APP, name),
        ):
            await asyncio.gather(asyncio.to_thread(each), return_exceptions=True)
        await asyncio.sleep(0.5)

    async def _change_knobs(self, number: int) -> None:
        names = (("max_replicas", 3), ("headroom", 0.3), ("ttft_target_s", 0.4))[number::2]
        for name, value in names:
            await asyncio.sleep(self.draw.uniform(0.0, CALM_S / 4))
            self.most = max(self.most, value) if name == "max_replicas" else self.most
            await self.controller.setters[number].set("tide", {name: value}, "a client")
            self.changed[name] = value

    # What must hold

    async def _look(self) -> None:
        """Look once a second whether what was learned is still there."""
        current.set(None)
        learned = stored(LEARNED, APP) or {"memories": {}}
        memory = learned["memories"].get(_TIDE)
        steps = memory["state"]["service"]["steps"] if memory else 0.0
        if self.steps_learned and not steps:
            self.faults.append(f"what {self.steps_learned} steps taught is lost")
        self.steps_learned = steps
        await asyncio.sleep(1.0)
