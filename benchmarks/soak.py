"""`python -m benchmarks.soak`: hours of every API, and the memory of each process by time.

A fifth of the clients leave before the answer is whole. Every few minutes a process is killed, or all clients
pause until the model is at zero. After the first quarter, a line is fitted to the memory of each process.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from benchmarks import REPOSITORY
from benchmarks.chaos.greedy_chat import PATHS, SUBJECTS, request_body
from benchmarks.common.interruption import end_on_signals
from benchmarks.common.markdown import table
from benchmarks.common.progress import say
from benchmarks.common.server_process import ServerError, ServerProcess
from benchmarks.common.supervise import TERM_S
from benchmarks.idle import serving
from benchmarks.serving_overhead.usage import name_of
from loadtests.machine import machine, versions
from serve_app.cli.ray_processes import stop_descendants

MODEL = "tideserve-tiny"
KILLED = ("engine-core", "engine-replica", "ingress", "batch-runner", "controller")
MOST_MIB = 1.0
"""The bound on the growth of a process for 1,000 requests."""
_MIB = 2.0**20
_WORKERS = 6
_LEAVES, _LEAVES_WITHIN_S = 0.2, 0.3
_YOUNG_S = 600.0
"""A process fills its caches for so long. Its growth counts from then on, over as long at least."""
_KILL_S = 30.0
"""A request that began within so many seconds after a kill may lose its answer to that kill."""
_AT_ZERO_S = 100.0
"""The pause until the model is at zero: its `downscale_to_zero_delay_s` and a drain."""
_GET = ("/v1/models", "/metrics", "/ready", "/autoscaling", "/autoscaling/decisions", "/v1/batches", "/")
_POST: Mapping[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "the sea", "max_tokens": 16},
    "/tokenize": {"prompt": "the sea"},
    "/v1/embeddings": {"input": "the sea"},  # refused: also an answer
    "/v1/messages": {"messages": [{"role": "user", "content": "the sea"}], "max_tokens": 16},
    "/v1/responses": {"input": "the sea", "max_output_tokens": 16},
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one time."""

    name: str
    at_s: float
    requests: int
    """Requests that all clients had ended by then."""
    resident_mib: float
    descriptors: int
    threads: int


@dataclass(slots=True)
class Soak:
    """The clients, and all that has been read of the server."""

    server: ServerProcess
    folder: Path
    chance: random.Random
    ended: Counter[str] = field(default_factory=Counter)
    """Requests by their outcome: a status, `left`, or why there was no whole answer."""
    samples: dict[int, list[Sample]] = field(default_factory=dict)
    """By process id."""
    database_mib: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    killed_at: float = float("-inf")
    """When the last process was killed."""

    async def run(self, minutes: float) -> None:
        """Let clients ask for `minutes` minutes. Raises ServerError if the server ends."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
        may_ask = asyncio.Event()
        may_ask.set()
        url = f"http://127.0.0.1:{self.server.port}"
        async with aiohttp.ClientSession(url, timeout=timeout) as session:
            work = [self._ask_on(session, may_ask) for _ in range(_WORKERS)]
            work += [
                self._disturb(may_ask, max(20.0, 60.0 * minutes / 24)),
                self._sample_on(minutes * 60 / 240),
            ]
            with suppress(TimeoutError):
                async with asyncio.timeout(60 * minutes):
                    await asyncio.gather(*work)

    async def _ask_on(self, session: aiohttp.ClientSession, may_ask: asyncio.Event) -> None:
        while True:
            await may_ask.wait()
            leaves, began, pause_s = self.chance.random() < _LEAVES, time.monotonic(), 0.05
            within_s = self.chance.uniform(0.0, _LEAVES_WITHIN_S) if leaves else 120.0
            try:
                outcome = await asyncio.wait_for(self._ask(session), within_s)
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
                if leaves and isinstance(error, TimeoutError):
                    outcome = "left"
                else:
                    when = "at a kill" if began < self.killed_at + _KILL_S else "at no kill"
                    outcome, pause_s = f"{type(error).__name__} {when}", 0.5
            self.ended[outcome] += 1
            await asyncio.sleep(pause_s)

    async def _ask(self, session: aiohttp.ClientSession) -> str:
        """Send a request of any API, and read its answer. Returns the status."""
        kind, choose = self.chance.random(), self.chance.choice
        if kind < 0.1:
            return await _read(session.get(choose(_GET)))
        if kind < 0.13:
            return await self._batch(session)
        if kind < 0.5:
            path = choose(list(_POST))
            return await _read(session.post(path, json={"model": MODEL, **_POST[path]}))
        api = choose(list(PATHS))
        body = request_body(MODEL, choose(SUBJECTS), self.chance.randint(4, 120), api)
        return await _read(session.post(PATHS[api], json=body))

    async def _batch(self, session: aiohttp.ClientSession) -> str:
        """Upload a file, make a batch of it, and sometimes cancel the batch."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "the sea"}], "max_tokens": 8}
        lines = [
            json.dumps({"custom_id": str(n), "method": "POST", "url": PATHS["chat"], "body": body})
            for n in range(4)
        ]
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", "\n".join(lines), filename="soak.jsonl")
        async with session.post("/v1/files", data=form) as reply:
            if reply.status != 200:  # such as 429 above the bound on files
                return str(reply.status)
            file = (await reply.json())["id"]
        wanted = {"input_file_id": file, "endpoint": PATHS["chat"], "completion_window": "24h"}
        async with session.post("/v1/batches", json=wanted) as reply:
            if reply.status != 200:
                return str(reply.status)
            batch = (await reply.json())["id"]
        if self.chance.random() < 0.3:
            return await _read(session.post(f"/v1/batches/{batch}/cancel"))
        return str(reply.status)

    async def _disturb(self, may_ask: asyncio.Event, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            if self.chance.random() < 0.3:
                may_ask.clear()
                await asyncio.sleep(_AT_ZERO_S)
                may_ask.set()
                continue
            role = self.chance.choice(KILLED)
            for process in await asyncio.to_thread(self.server.processes):
                with suppress(psutil.Error):
                    if name_of(process.cmdline()) == role:
                        say(f"killing {role} ({process.pid})")
                        process.kill()
                        self.killed_at = time.monotonic()
                        break

    async def _sample_on(self, every_s: float) -> None:
        while True:
            await asyncio.to_thread(self._sample)
            await asyncio.sleep(every_s)

    def _sample(self) -> None:
        now, asked = time.monotonic() - self.began, self.ended.total()
        for process in self.server.processes():
            with suppress(psutil.Error):
                if (name := name_of(process.cmdline())) is not None:
                    mib = process.memory_info().rss / _MIB
                    sample = Sample(name, now, asked, mib, process.num_fds(), process.num_threads())
                    self.samples.setdefault(process.pid, []).append(sample)
        self.database_mib.append(sum(each.stat().st_size for each in self.folder.rglob("*.db")) / _MIB)


async def _read(request: Any) -> str:
    async with request as reply:
        async for _ in reply.content.iter_any():
            pass
        return str(reply.status)


def slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return the slope of the line through the points by least squares, and its standard error.

    Infinity is the error of fewer than four points, and of points at one place.
    """
    if len(x) < 4 or max(x) == min(x):
        return 0.0, float("inf")
    (gradient, _), covariance = np.polyfit(x, y, 1, cov=True)
    return float(gradient), float(np.sqrt(covariance[0][0]))


def judge(samples: Mapping[int, Sequence[Sample]], from_s: float) -> tuple[str, bool]:
    """Return the table of all processes, and whether none grows by more than 1 MiB for 1,000 requests.

    Growth counts if it exceeds the bound by twice its standard error. Only samples after `from_s` count, and
    those of a process that is ten minutes old.
    """
    rows, passed = [], True
    for pid, found in sorted(samples.items(), key=lambda item: (item[1][-1].name, item[0])):
        old_at_s = max(from_s, found[0].at_s + _YOUNG_S)
        late = [sample for sample in found if sample.at_s >= old_at_s]
        if len(late) < 4 or late[-1].at_s - late[0].at_s < _YOUNG_S:
            continue
        first, last = late[0], late[-1]
        memory = [sample.resident_mib for sample in late]
        per_request, error = slope([sample.requests for sample in late], memory)
        per_hour, error_hour = slope([sample.at_s / 3600 for sample in late], memory)
        grows = 1000 * (per_request - 2 * error) > MOST_MIB
        passed &= not grows
        rows.append([
            f"{last.name} {pid}", f"{first.resident_mib:.1f} to {last.resident_mib:.1f}",
            f"{per_hour:+.2f} ± {error_hour:.2f}", f"{1000 * per_request:+.2f} ± {1000 * error:.2f}",
            f"{first.descriptors} to {last.descriptors}", f"{first.threads} to {last.threads}",
            "GROWS" if grows else "",
        ])  # fmt: skip
    header = ["process", "MiB", "MiB an hour", "MiB for 1,000 requests", "descriptors", "threads", ""]
    return table(header, rows), passed


def main(argv: Sequence[str]) -> int:
    """Return 0; 1 if the server fails, 3 if a process grows too much, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0, help="of random draws")
    parser.add_argument("--config", type=Path, default=REPOSITORY / "config" / "serve.zero.yaml")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/soak.json"))
    given = parser.parse_args(argv)
    end_on_signals()
    status, soak = 0, None
    try:
        with serving(given.config, "/health", "--restart") as (server, folder):
            soak = Soak(server, folder, random.Random(given.seed))
            asyncio.run(soak.run(given.minutes))
    except ServerError as error:
        say(f"FAILED: {error}")
        status = 1
    except KeyboardInterrupt:
        status = 130
    finally:
        stop_descendants(TERM_S)
    if soak is None or not soak.database_mib:
        return status
    text, passed = judge(soak.samples, given.minutes * 15)
    for facts in (machine(), versions()):
        print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"\n{soak.ended.total()} requests: {dict(soak.ended.most_common())}\n\n{text}")
    print(f"\ndatabases: {soak.database_mib[0]:.2f} to {soak.database_mib[-1]:.2f} MiB")
    rows = {pid: [asdict(sample) for sample in found] for pid, found in soak.samples.items()}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"samples": rows, "databases": soak.database_mib}), encoding="utf-8")
    return status or (0 if passed else 3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
