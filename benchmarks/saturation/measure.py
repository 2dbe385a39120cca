"""One system with a number of open streams: at the rate that all systems get, and at the most it carries."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.chaos.cpu_by_process import name_of, read
from benchmarks.common.server_process import ServerProcess
from benchmarks.saturation.streams import Streams

SHARED_EVENTS = 1.05
"""More tokens than this in an event, and the system does not keep up: it merges what waits."""
_FASTER = 1.25
_MORE = 1.03
"""A rate that delivers less than this times what the one before did has brought nothing."""
_SETTLE_S = 2.0
_STEP_UP_S = 3.0
_QUIET_CORES, _QUIET_S, _LOOKS = 0.5, 1.0, 15
"""Tideserve idles at 0.3 of a core, Ray included."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every system gets."""

    model: str
    rate: float
    """Tokens per second of all streams together."""
    seconds: float
    ladder: bool
    """Whether to look for the most that is carried."""
    most_tokens: int


@dataclass(frozen=True, slots=True)
class Window:
    """What happened in some seconds of open streams."""

    tokens: int
    events: int
    wall_s: float
    client_cpu_s: float
    cpu_s: Mapping[str, float]
    """By process."""

    def __str__(self) -> str:
        dearest = sorted(self.cpu_s.items(), key=lambda item: -item[1])[:4]
        costs = ", ".join(f"{name} {1e6 * cpu_s / self.tokens:.1f}" for name, cpu_s in dearest)
        return f"{self.tokens_per_s:,.0f} tok/s, {self.tokens_per_event:.3f} an event; µs/token: {costs}"

    @property
    def tokens_per_s(self) -> float:
        """Delivered on all streams together."""
        return self.tokens / self.wall_s

    @property
    def tokens_per_event(self) -> float:
        """1, unless the system merges."""
        return self.tokens / max(1, self.events)


@dataclass(frozen=True, slots=True)
class Measured:
    """One system in one round with one number of streams."""

    system: str
    round: int
    streams: int
    paced: Window
    most: Window | None
    pss: Mapping[str, int]
    """Bytes by process at the end of `paced`, memory shared between processes counted once."""


async def measure(
    server: ServerProcess, streams: int, round_number: int, plan: Plan, say: Callable[[str], None]
) -> Measured:
    """Open `streams` streams, and count. Raises StreamError or TimeoutError if the system does not serve."""
    load = Streams(server.port, plan.model, plan.most_tokens)
    try:
        await load.open(streams, streams / plan.rate)
        await asyncio.sleep(_SETTLE_S)
        paced = await _window(server, load, plan.seconds)
        pss = memory_by_process(server.processes())
        most = await _climb(server, load, streams, plan.rate, paced) if plan.ladder else None
    finally:
        load.close()
        await _quiet(server)
    for title, window in (("paced", paced), ("at most", most)):
        if window is not None:
            say(f"round {round_number}, {server.name}, {streams} streams, {title}: {window}")
    return Measured(server.name, round_number, streams, paced, most, pss)


async def _climb(
    server: ServerProcess, load: Streams, streams: int, rate: float, window: Window
) -> Window | None:
    """The fastest window in which streams get their tokens one by one; None if not even the first is."""
    best = None
    while window.tokens_per_event <= SHARED_EVENTS:
        if best is not None and window.tokens_per_s < _MORE * best.tokens_per_s:
            break
        best = window
        rate *= _FASTER
        await load.change(streams / rate)
        await asyncio.sleep(_SETTLE_S)
        window = await _window(server, load, _STEP_UP_S)
    return best


async def _window(server: ServerProcess, load: Streams, seconds: float) -> Window:
    before, began, client_s = read(server.processes()), time.monotonic(), time.process_time()
    tokens, events = load.tokens, load.events
    await asyncio.sleep(seconds)
    tokens, events = load.tokens - tokens, load.events - events
    wall_s, client_s = time.monotonic() - began, time.process_time() - client_s
    used = read(server.processes()).since(before)
    load.check()
    return Window(tokens, events, wall_s, client_s, used.cpu_s)


async def _quiet(server: ServerProcess) -> None:
    """Wait until the front end has ended what was left, so that the next measurement does not pay for it."""
    before = server.cpu_seconds()
    for _ in range(_LOOKS):
        await asyncio.sleep(_QUIET_S)
        now = server.cpu_seconds()
        if now - before < _QUIET_CORES * _QUIET_S:
            return
        before = now


def memory_by_process(processes: list[psutil.Process]) -> dict[str, int]:
    """Proportional set size in bytes, by process."""
    found: Counter[str] = Counter()
    for process in processes:
        with suppress(psutil.Error):
            name = name_of(process.cmdline())
            if name is not None:
                found[name] += process.memory_full_info().pss
    return dict(found)
