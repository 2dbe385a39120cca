"""Watches an application from outside: its streams, the probes that ask it, and its processes."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import aiohttp

from benchmarks.chaos.load import CLOSE, DROP, OPEN, Job
from benchmarks.chaos.processes import Processes
from benchmarks.chaos.trace import INTERVAL_S, Probe, Ready, Snapshot, Stream, Trace

_ANSWER_TIMEOUT_S = 120.0
"""A client that waits for a cold start waits long."""
_STATE_TIMEOUT_S = 10.0
_MOST_OPEN = 1000
_SHOWN = 200
_LINE_BYTES = 1 << 24
"""The record of one stream is one line, with its text and log-probabilities."""


class Prober:
    """Asks an application five times a second, and writes the answers into a trace."""

    def __init__(self, url: str, model: str, trace: Trace) -> None:
        self._url, self._model, self._trace = url, model, trace
        # `force_close`: every probe is a client that has no connection yet.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector)
        self._open: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Ask until cancelled. Requests under way are then recorded as unanswered."""
        began, number = time.monotonic(), 0
        try:
            while True:
                if len(self._open) < _MOST_OPEN:
                    for ask in (self._ask_answer, self._ask_ready, self._ask_health):
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

    async def _ask_answer(self) -> None:
        body = {"model": self._model, "prompt": "x", "max_tokens": 1, "temperature": 0}
        probe, _ = await self._ask("/v1/completions", _ANSWER_TIMEOUT_S, body)
        self._trace.answers.append(probe)

    async def _ask_health(self) -> None:
        self._trace.healths.append((await self._ask("/health", _STATE_TIMEOUT_S))[0])

    async def _ask_ready(self) -> None:
        probe, text = await self._ask("/ready", _STATE_TIMEOUT_S)
        self._trace.readies.append(read_ready(probe, text, self._model))

    async def _ask(self, path: str, timeout_s: float, body: Any = None) -> tuple[Probe, str]:
        """The probe, and the text of its answer whatever its status."""
        sent_s, text, ok, error = time.monotonic(), "", False, ""
        method, timeout = ("GET" if body is None else "POST"), aiohttp.ClientTimeout(timeout_s)
        try:
            call = self._session.request(method, self._url + path, json=body, timeout=timeout)
            async with call as response:
                text, ok = await response.text(), response.status == 200
                error = "" if ok else f"HTTP {response.status}: {text[:_SHOWN]}"
        except asyncio.CancelledError:
            error = "unanswered when the run ended"
        except (aiohttp.ClientError, OSError, TimeoutError) as failure:
            error = f"{type(failure).__name__}: {failure}"[:_SHOWN]
        return Probe(sent_s, time.monotonic(), ok, error), text


def read_ready(probe: Probe, text: str, model: str) -> Ready:
    """The state of a model in an answer of `/ready`. An answer of another shape has none."""
    try:
        state: dict[str, Any] = json.loads(text)["models"][model]
        up = probe.ok and state["state"] == "up"
        return Ready(probe.sent_s, probe.ended_s, True, "", up, int(state["replicas"]))
    except (ValueError, KeyError, TypeError):
        return Ready(probe.sent_s, probe.ended_s, False, probe.error or f"unexpected: {text[:_SHOWN]}")


class Observer:
    """The application as it is now, and a trace of what has been."""

    def __init__(
        self, processes: Processes, job: Job, trace: Trace, child: asyncio.subprocess.Process
    ) -> None:
        self.job, self.trace = job, trace
        self.streaming = 0
        """Streams that receive tokens now."""
        self._processes, self._child = processes, child

    @property
    def latest(self) -> Snapshot:
        """The latest snapshot of the processes."""
        return self.trace.snapshots[-1]

    def take_snapshot(self) -> Snapshot:
        """A new snapshot."""
        self.trace.snapshots.append(self._processes.snapshot())
        return self.latest

    def open(self) -> None:
        """Open the streams, and another for each that ends."""
        self._order(OPEN)

    def open_no_more(self) -> None:
        """Let the open streams run to their end."""
        self._order(CLOSE)

    async def close(self, seconds: float) -> None:
        """Open no more, wait `seconds` for the streams that are open, and give up the rest."""
        self.open_no_more()
        end = time.monotonic() + seconds
        while self.streaming and time.monotonic() < end:  # noqa: ASYNC110 two conditions
            await asyncio.sleep(INTERVAL_S)
        if self.streaming:
            self._order(DROP)
            await asyncio.sleep(INTERVAL_S)

    def _order(self, order: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{order}\n".encode())

    async def follow_load(self) -> None:
        """Read the documents of the load's process."""
        assert self._child.stdout is not None
        while line := await self._child.stdout.readline():
            document = json.loads(line)
            if "streaming" in document:
                self.streaming = document["streaming"]
            else:
                self.trace.streams.append(Stream(**document["stream"]))

    async def follow_processes(self) -> None:
        """Take snapshots until cancelled."""
        while True:
            self.trace.snapshots.append(await asyncio.to_thread(self._processes.snapshot))
            await asyncio.sleep(INTERVAL_S)


@asynccontextmanager
async def observing(processes: Processes, job: Job, trace: Trace) -> AsyncIterator[Observer]:
    """Observe while the block runs, and write what is seen into `trace`.

    Raises RuntimeError if the process of the load ended before the block did.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.chaos.load", json.dumps(asdict(job)),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LINE_BYTES,
    )  # fmt: skip
    processes.excluded.add(child.pid)
    observer = Observer(processes, job, trace, child)
    observer.take_snapshot()
    prober = Prober(job.url, job.model, trace)
    works = (observer.follow_load(), observer.follow_processes(), prober.run())
    tasks = [asyncio.create_task(work) for work in works]
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
