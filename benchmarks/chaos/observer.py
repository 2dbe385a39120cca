"""Watches an application from outside: its load, the probes that ask it, and its processes."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import aiohttp

from benchmarks.chaos.greedy import Heard
from benchmarks.chaos.load import CLOSE, DROP, OPEN, Job
from benchmarks.chaos.observed import INTERVAL_S, Look, Probe, Ready, Stream, Trace
from benchmarks.chaos.processes import Processes

_ANSWER_TIMEOUT_S = 120.0
"""A client that waits for a cold start waits long."""
_STATE_TIMEOUT_S = 10.0
_MOST_OPEN = 1000
_SHOWN = 200


class Prober:
    """Writes what it finds into a trace."""

    def __init__(self, url: str, model: str, headers: Mapping[str, str], trace: Trace) -> None:
        self._url, self._model, self._trace = url, model, trace
        # `force_close`: a client that comes anew, and no connection of one that was there before.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, headers=headers)
        self._open: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Ask until cancelled; requests under way are then recorded as unanswered."""
        began, number = time.monotonic(), 0
        try:
            while True:
                if len(self._open) < _MOST_OPEN:
                    for ask in (self._answer, self._ready, self._health):
                        self._start(ask)
                number += 1
                await asyncio.sleep(began + number * INTERVAL_S - time.monotonic())
        finally:
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            await self._session.close()

    def _start(self, ask: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(ask())
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _answer(self) -> None:
        body = {"model": self._model, "prompt": "x", "max_tokens": 1, "temperature": 0}
        request = self._session.post(
            f"{self._url}/v1/completions", json=body, timeout=aiohttp.ClientTimeout(_ANSWER_TIMEOUT_S)
        )
        self._trace.answers.append(await _probe(request))

    async def _health(self) -> None:
        request = self._session.get(f"{self._url}/health", timeout=aiohttp.ClientTimeout(_STATE_TIMEOUT_S))
        self._trace.healths.append(await _probe(request))

    async def _ready(self) -> None:
        request = self._session.get(f"{self._url}/ready", timeout=aiohttp.ClientTimeout(_STATE_TIMEOUT_S))
        sent_s = time.monotonic()
        status, text, error = await _exchange(request)
        self._trace.readies.append(ready_answer(sent_s, time.monotonic(), status, text, self._model, error))


def ready_answer(sent_s: float, ended_s: float, status: int, text: str, model: str, error: str = "") -> Ready:
    """What an answer of `/ready` says of a model. One that is not of its shape says nothing."""
    if error:
        return Ready(sent_s, ended_s, "nothing", error=error)
    try:
        told: dict[str, Any] = json.loads(text)["models"][model]
        up = status == 200 and told["state"] == "up"
        return Ready(sent_s, ended_s, "up" if up else "down", int(told["replicas"]))
    except (ValueError, KeyError, TypeError):
        return Ready(sent_s, ended_s, "nothing", error=f"HTTP {status}: {text[:_SHOWN]}")


async def _probe(request: Any) -> Probe:
    sent_s = time.monotonic()
    status, text, error = await _exchange(request)
    if not error and status != 200:
        error = f"HTTP {status}: {text[:_SHOWN]}"
    return Probe(sent_s, time.monotonic(), not error, error)


async def _exchange(request: Any) -> tuple[int, str, str]:
    """Status, body and, if there was no answer, why."""
    try:
        async with request as response:
            return response.status, await response.text(), ""
    except asyncio.CancelledError:
        return 0, "", "unanswered when the run ended"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return 0, "", f"{type(error).__name__}: {error}"[:_SHOWN]


_LOOK_S = 0.2
_MEMORY_S = 5.0
_LINE_BYTES = 1 << 20


class Observer:
    """What is seen now, and a trace of what has been."""

    def __init__(
        self,
        processes: Processes,
        job: Job,
        trace: Trace,
        child: asyncio.subprocess.Process,
        heard: list[Heard] | None = None,
    ) -> None:
        self.processes, self.job, self.trace = processes, job, trace
        self.streaming = 0
        """Streams that receive tokens now."""
        self.heard = [] if heard is None else heard
        """Streams of the greedy load that are over."""
        self._child = child

    @property
    def look(self) -> Look:
        """The latest look at the processes."""
        return self.trace.looks[-1]

    def look_now(self) -> Look:
        """A new one."""
        look = self.processes.look()
        self.trace.looks.append(look)
        return look

    def open(self) -> None:
        """Open the streams, and another for each that ends."""
        self._order(OPEN)

    def open_no_more(self) -> None:
        """Let those that are open run to their end."""
        self._order(CLOSE)

    async def close(self, seconds: float) -> None:
        """Open no more, wait so long for those that are open, and count the rest as hung."""
        self.open_no_more()
        end = time.monotonic() + seconds
        while self.streaming and time.monotonic() < end:  # noqa: ASYNC110 two conditions
            await asyncio.sleep(_LOOK_S)
        if self.streaming:
            self._order(DROP)
            await asyncio.sleep(_LOOK_S)

    def _order(self, order: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{order}\n".encode())

    async def follow(self) -> None:
        """Take what the load tells."""
        assert self._child.stdout is not None
        while line := await self._child.stdout.readline():
            told = json.loads(line)
            if "streaming" in told:
                self.streaming = told["streaming"]
            elif "heard" in told:
                self.heard.append(Heard(**told["heard"]))
            else:
                self.trace.streams.append(Stream(**told["stream"]))

    async def look_around(self) -> None:
        """Look at the processes until cancelled."""
        measured = float("-inf")
        while True:
            look = await asyncio.to_thread(self.processes.look)
            self.trace.looks.append(look)
            if look.at_s - measured > _MEMORY_S:
                measured = look.at_s
                self.trace.memory.append(await asyncio.to_thread(self.processes.memory, look))
            await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def observing(
    processes: Processes,
    job: Job,
    trace: Trace,
    load: str = "benchmarks.chaos.load",
    heard: list[Heard] | None = None,
) -> AsyncIterator[Observer]:
    """Observe while the block runs, and write what is seen into `trace`. `load` is the module of the load,
    and what its streams say goes to `heard`, if it tells that.

    Raises RuntimeError if the process of the load ended before the block did.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", load, json.dumps(asdict(job)),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LINE_BYTES,
    )  # fmt: skip
    observer = Observer(processes, job, trace, child, heard)
    observer.look_now()
    prober = Prober(job.url, job.model, job.headers, observer.trace)
    tasks = [asyncio.create_task(work) for work in (observer.follow(), observer.look_around(), prober.run())]
    try:
        yield observer
    finally:
        ended_before = child.returncode
        if child.stdin is not None:
            child.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), 5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if child.returncode is None:
            child.kill()
            await child.wait()
        if ended_before is not None:
            raise RuntimeError(f"the process of the load ended with status {ended_before}")
