"""One start, measured: from zero to the first token of every replica."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import aiohttp
import psutil

from benchmarks.cold_start.asking import Answer, answered, ask, ask_until_up, logged
from benchmarks.cold_start.phases import Phase, since
from benchmarks.cold_start.spans import received
from benchmarks.cold_start.systems import Start
from benchmarks.cold_start.traced import Trace, watched
from benchmarks.cold_start.usage import cpu_s, pss_bytes
from benchmarks.common import process_tree
from benchmarks.common.server_process import ServerError, ServerProcess

_LOOK_S = 0.05
_SETTLED_CORES = 0.5
"""An idle Ray cluster takes 0.1 to 0.2 of a core, of a slow one more; a zygote that imports, a whole one."""
_SETTLING_S = 2.0
_LOGGED_S = 10.0
"""A request is logged a second after its end."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One start. Times in seconds from zero: the request, or the start of the first process."""

    system: str
    replicas: int
    round: int
    traced: bool
    first_token_s: float
    all_answered_s: float
    """When the last of the replicas had sent its first token."""
    up_s: float | None
    """From `tideserve run` until it was ready, at zero or not yet able to answer; None for vLLM."""
    cpu_s: Mapping[str, float]
    """By group of processes, until all had answered."""
    pss_bytes: Mapping[str, int]
    other_cores: float
    """What anything else on the machine took meanwhile."""
    phases: tuple[tuple[Phase, ...], ...] = ()
    """Of each replica, if this start was traced."""


def measure(start: Start, number: int, traced: bool, timeout_s: float) -> Measured:
    """Start it, ask it, and stop it.

    Raises:
        ServerError: if it does not answer as it should.
    """
    with ExitStack() as stack:
        spans = stack.enter_context(received()) if traced else None
        began, busy = time.time(), process_tree.machine_busy_s()
        servers = start.servers(spans.url if spans else None)
        for server in servers:
            stack.callback(server.stop)
        up_s = _wait_up(start, servers[0], timeout_s) if start.system.ours else None
        before, zero = Counter[str](), began
        if start.system.at_zero:
            _settle(start, servers[0], timeout_s)
            before, busy, zero = cpu_s(_processes(servers)), process_tree.machine_busy_s(), time.time()
        watch = stack.enter_context(watched(servers)) if traced else None
        answers = asyncio.run(_ask(start, servers, timeout_s))
        now, busy = time.time(), process_tree.machine_busy_s() - busy
        spent = cpu_s(_processes(servers)) - before
        memory = pss_bytes(_processes(servers))
        first = min(answer.token for answer in answers.values())
        if start.system.ours and start.replicas > 1:
            answers = _of_replicas(start)
        phases: list[list[Phase]] = []
        if spans is not None and watch is not None:
            phases = Trace(start, servers, spans.found, watch, zero, answers).phases()
        return Measured(
            start.system.name,
            start.replicas,
            number,
            traced,
            first_token_s=first - zero,
            all_answered_s=max(one.token for one in answers.values()) - zero,
            up_s=up_s,
            cpu_s=dict(spent),
            pss_bytes=dict(memory),
            other_cores=max(0.0, (busy - spent.total()) / (now - zero)),
            phases=tuple(tuple(since(zero, one)) for one in phases),
        )


def _wait_up(start: Start, server: ServerProcess, timeout_s: float) -> float:
    # `/ready` is 200 once there is what was asked for: at zero, nothing.
    return server.wait_ready("/ready" if start.system.at_zero else "/health", timeout_s)


def _settle(start: Start, server: ServerProcess, timeout_s: float) -> None:
    """Wait until the application at zero takes next to no CPU: until its zygote has imported."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        before = cpu_s(_processes([server]))
        began = time.monotonic()
        time.sleep(_SETTLING_S)
        after = cpu_s(_processes([server]))
        cores = (after.total() - before.total()) / (time.monotonic() - began)
        if cores < _SETTLED_CORES and ("zygote" in after) == start.system.zygote:
            return
    raise ServerError(f"{server.name} has not come to rest at zero within {timeout_s:.0f} s")


async def _ask(start: Start, servers: Sequence[ServerProcess], timeout_s: float) -> dict[str, Answer]:
    """Return the first answers, by server."""
    model = start.engine.served_model_name
    timeout = aiohttp.ClientTimeout(total=None, sock_read=timeout_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        asyncio.timeout(timeout_s),
        aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
    ):
        if start.system.ours and start.replicas > 1:
            burst = ask_until_up(session, servers[0], model, start.burst, start.replicas)
            answers = [await burst]
        else:
            answers = await asyncio.gather(*(ask(session, server, model) for server in servers))
    return {str(number): answer for number, answer in enumerate(answers)}


def _of_replicas(start: Start) -> dict[str, Answer]:
    """Return the first answer of each replica, from their request logs."""
    found: dict[str, Answer] = {}
    for _ in range(int(_LOGGED_S / _LOOK_S)):
        found = answered(logged(start.request_log))
        if len(found) == start.replicas:
            return found
        time.sleep(_LOOK_S)
    raise ServerError(f"{len(found)} of {start.replicas} replicas have answered a request")


def _processes(servers: Sequence[ServerProcess]) -> list[psutil.Process]:
    return [process for server in servers for process in server.processes()]
