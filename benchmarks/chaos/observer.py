"""Watches an application from outside: its load, its probes, and its processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from benchmarks.chaos.load import CLOSE, DROP, OPEN, Job
from benchmarks.chaos.observed import Look, Stream, Trace
from benchmarks.chaos.probes import Prober
from benchmarks.chaos.processes import Processes

_LOOK_S = 0.2
_MEMORY_S = 5.0
_LINE_BYTES = 1 << 20


class Observer:
    """What is seen now, and a trace of what has been."""

    def __init__(
        self, processes: Processes, job: Job, trace: Trace, child: asyncio.subprocess.Process
    ) -> None:
        self.processes, self.job, self.trace = processes, job, trace
        self.streaming = 0
        """Streams that receive tokens now."""
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
async def observing(processes: Processes, job: Job, trace: Trace) -> AsyncIterator[Observer]:
    """Observer while the block runs, and write what is seen into `trace`.

    Raises:
        RuntimeError: if the process of the load ended before the block did.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.chaos.load", json.dumps(asdict(job)),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LINE_BYTES,
    )  # fmt: skip
    observer = Observer(processes, job, trace, child)
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
