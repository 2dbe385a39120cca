"""One run from end to end: wait for the replicas, send the requests, watch them, and collect the results."""

import asyncio
import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

import aiohttp

from loadtests.client.drive import beside
from loadtests.client.processes import ClientProcesses
from loadtests.client.prompts import Target
from loadtests.live_view import Progress
from loadtests.machine import machine, versions
from loadtests.observer import Observer
from loadtests.plan import Planned, endless
from loadtests.record import Run, Sample, Timekeeping
from loadtests.scenario import Scenario
from loadtests.server import Served, ask_server, check_plan, choose_model
from serve_app.cli.http_client import proxy_for


@contextmanager
def stop_on_signals(stopping: asyncio.Event) -> Iterator[None]:
    """Set `stopping` at the first SIGINT, SIGTERM or hang-up; a second SIGINT is Python's own again.

    Under `nohup` hang-ups stay ignored. For the main thread's running loop.
    """
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        stopping.set()
        loop.remove_signal_handler(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


_LOOK_S = 1.0
_DECISIONS_EVERY = 2
"""Looks from one reading of the decisions to the next."""
_CHECKED = 1000
"""Requests of a closed loop that are checked against the server before the run."""
_SHOW_S = 0.25
_READY_S = 0.05
_LEAD_S = 1.5
"""From the clients' readiness to t = 0, for the first prompts to be drawn."""
_AFTER_S = 4.0
"""How long to go on looking after the last event: metrics are two seconds behind."""
_LOST_S = 10.0
"""How long after an interruption to wait for the open requests of the clients."""


class View(Protocol):
    """Shows the progress of a run."""

    def show(self, progress: Progress) -> None:
        """Called four times a second."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """A scenario and the server to run it against."""

    scenario: Scenario
    planned: tuple[Planned, ...]
    """The requests of an open loop, a conversation by its first turn; empty in a closed one."""
    planned_s: float
    """How long requests come for."""
    url: str
    model: str | None = None
    """The model of requests that name none."""
    headers: Mapping[str, str] | None = None


async def run(order: Order, view: View) -> Run:
    """Run it. The first SIGINT, SIGTERM or hang-up ends it early, with all results until then.

    Raises ServerError, before anything was sent, for a server that cannot be tested with this scenario.
    """
    stopping = asyncio.Event()
    session = aiohttp.ClientSession(headers=order.headers, proxy=proxy_for(order.url))
    async with session:
        with stop_on_signals(stopping):
            found = await ask_server(session, order.url)
            model = choose_model(found, order.model)
            check_plan(order.planned or list(islice(endless(order.scenario), _CHECKED)), found, model)
            return await _Runner(order, session, found, model, stopping, view).run()


class _Runner:
    def __init__(
        self,
        order: Order,
        session: aiohttp.ClientSession,
        found: Served,
        model: str,
        stopping: asyncio.Event,
        view: View,
    ) -> None:
        self._order = order
        self._scenario = order.scenario
        self._found = found
        self._stopping = stopping
        self._view = view
        self._models = tuple(dict.fromkeys(kind.model or model for kind in order.scenario.requests))
        self._observer = Observer(session, order.url, self._models)
        headers, seed = order.headers or {}, order.scenario.seed
        self._target = Target(order.url, headers, model, seed=seed, context_tokens=found.context)
        self._progress = Progress([p.at_s for p in order.planned], order.planned_s)
        self._samples: list[Sample] = []
        self._begin, self._began = time.monotonic(), time.time()
        self._machine = machine()

    async def run(self) -> Run:
        unmet = await self._wait_for_start()
        timekeeping, failure = None, ""
        if not unmet and not self._stopping.is_set():
            timekeeping, failure = await self._drive()
            if not self._stopping.is_set() and not failure:
                await self._await_scale_down()
        interrupted = failure or ("it was interrupted" if self._stopping.is_set() else "")
        self._progress.stage = "done"
        self._view.show(self._progress)
        return self._collected(timekeeping, interrupted, unmet)

    async def _wait_for_start(self) -> str:
        """Wait for `scaling.starts_at`. Returns why it was not met; empty if it was."""
        wanted = self._scenario.scaling.starts_at
        if wanted is None:
            return ""
        end = time.monotonic() + self._scenario.scaling.within_s
        while not self._stopping.is_set():
            there = {model: await self._observer.replicas(model) for model in self._models}
            if all(state == (wanted, wanted) for state in there.values()):
                return ""
            unknown = [model for model, state in there.items() if state is None]
            if unknown:
                why = f": {self._observer.problem}" if self._observer.problem else ""
                return f"the server does not report the replicas of {', '.join(unknown)} at /ready{why}"
            states = "; ".join(f"{model} has {s[0]} of {s[1]}" for model, s in there.items() if s)
            if time.monotonic() > end:
                return (
                    f"scaling.starts_at = {wanted} replicas ready and no other: not so within "
                    f"{self._scenario.scaling.within_s:g} s; {states}"
                )
            self._progress.waiting_for = f"{wanted} replicas to begin with: {states}"
            self._show()
            await self._pause(_LOOK_S)
        return ""

    async def _drive(self) -> tuple[Timekeeping | None, str]:
        """Send all requests. Returns the timekeeping, and why it ended early, if it did."""
        with self._clients() as clients:
            clients.start()
            while not (clients.ready or clients.failed or self._stopping.is_set()):
                clients.poll()
                await asyncio.sleep(_READY_S)
            if clients.failed or self._stopping.is_set():
                return None, clients.failed
            self._begin, self._began = time.monotonic() + _LEAD_S, time.time() + _LEAD_S
            clients.begin(self._begin)
            self._progress.stage = "running"
            async with beside(self._observe()):
                lost_at = math.inf
                while not clients.finished:
                    self._progress.add(clients.poll())
                    if self._stopping.is_set() and lost_at == math.inf:
                        clients.stop()
                        lost_at = time.monotonic() + _LOST_S
                    if time.monotonic() > lost_at:
                        return None, f"it was interrupted, and a client did not end within {_LOST_S:g} s"
                    self._show()
                    await asyncio.sleep(_SHOW_S)
            return clients.timekeeping, clients.failed

    def _clients(self) -> ClientProcesses:
        scenario, target = self._scenario, self._target
        if scenario.closed is None:
            planned, until_s = self._order.planned, self._order.planned_s
            return ClientProcesses.of_open_loop(planned, target, scenario.client, until_s)
        plan = partial(endless, scenario)
        return ClientProcesses.of_closed_loop(scenario.closed, plan, target, scenario.client)

    async def _await_scale_down(self) -> None:
        """Go on looking until the replicas are as few as `scaling.returns_to`, or `within_s` is over."""
        if not self._samples:  # The server reports no replicas.
            return
        goal = self._scenario.scaling.returns_to
        end = time.monotonic() + self._scenario.scaling.within_s
        # Metrics lag: right after the last answer they may not even show the replica that gave it.
        told_from_s = self._now() + _AFTER_S
        self._progress.stage = "scaling down"
        async with beside(self._observe()):
            while goal is not None and not self._stopping.is_set() and time.monotonic() < end:
                newest = [self._progress.samples.get(model) for model in self._models]
                if all(s is not None and s.at_s >= told_from_s and _is_down(s, goal) for s in newest):
                    break
                self._progress.waiting_for = f"{goal} replicas; {end - time.monotonic():.0f} s are left"
                self._show()
                await asyncio.sleep(_SHOW_S)
            await self._pause(_AFTER_S)

    async def _observe(self) -> None:
        due, looks = time.monotonic(), 0
        while True:
            await self._look()
            if looks % _DECISIONS_EVERY == 0:
                await self._read_decisions()
            self._progress.problem = self._observer.problem
            looks += 1
            due = max(due + _LOOK_S, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def _look(self) -> None:
        for sample in await self._observer.look(self._now()):
            self._samples.append(sample)
            self._progress.samples[sample.model] = sample

    async def _read_decisions(self) -> None:
        await self._observer.read_decisions()
        changes = [record for record in self._decisions() if record.get("kind") == "change"]
        if changes:
            self._progress.decision = changes[-1]

    def _decisions(self) -> list[Mapping[str, object]]:
        """The decisions on this run's models, from the last heartbeat before it on."""
        return [
            record
            for record in self._observer.decisions
            if float(record["at"]) >= self._began - _LEAD_S and record.get("model") in self._models
        ]

    def _now(self) -> float:
        return time.monotonic() - self._begin

    def _show(self) -> None:
        self._progress.at_s = self._now()
        self._view.show(self._progress)

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until a signal comes."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _collected(self, timekeeping: Timekeeping | None, interrupted: str, unmet: str) -> Run:
        server = {"server": self._found.version} if self._found.version else {}
        return Run(
            scenario=self._scenario.model_dump(mode="json"),
            scenario_hash=self._scenario.digest(),
            url=self._order.url,
            began=self._began,
            duration_s=max(0.0, self._now()),
            records=tuple(sorted(self._progress.records, key=lambda record: record.index)),
            samples=tuple(self._samples),
            decisions=tuple(self._decisions()),
            timekeeping=timekeeping or Timekeeping(0.0, 0.0, 0.0, 0.0, 0.0),
            interrupted=interrupted,
            unmet=unmet,
            machine=self._machine,
            versions={**versions(), **server},
        )


def _is_down(sample: Sample, goal: int) -> bool:
    """Whether at most `goal` replicas exist or start, and none is draining. -1 is not reported."""
    coming = max(0, sample.starting) + max(0, sample.pending)
    return sample.ready >= 0 and sample.ready + coming <= goal and sample.draining <= 0
