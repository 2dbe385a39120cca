"""`python -m benchmarks.soak`: two hours of every API, and the memory of each process by time.

Clients mix all APIs, and a fifth of them leave before the answer is whole. Every few minutes a process is
killed, or all clients pause until the model is at zero. Once in a while the resident memory, descriptors and
threads of each process and the size of the databases are read. After the first quarter a line is fitted to
the memory of each process that has lived since then.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from benchmarks.serving_overhead.servers import cluster_environment
from benchmarks.serving_overhead.usage import name_of
from loadtests.machine import machine, versions
from serve_app.cli.listening import free_port
from serve_app.cli.ray_processes import stop_descendants

MODEL = "tideserve-tiny"
KILLED = ("engine-core", "engine-replica", "ingress", "batch-runner", "controller")
MOST_MIB = 1.0
"""The bound on the growth of a process for 1,000 requests."""
_MIB = 2.0**20
_START_S = 300.0
_LEAVES = 0.2
_LEAVES_WITHIN_S = 0.3
_WORKERS = 6
_AT_ZERO_S = 30.0
_GET = ("/v1/models", "/metrics", "/ready", "/autoscaling", "/autoscaling/decisions", "/v1/batches", "/")
_WITHOUT_STREAM: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 16},
    "/tokenize": lambda text: {"prompt": text},
    "/v1/embeddings": lambda text: {"input": text},  # refused: also an answer
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 32},
    "/v1/messages": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 16},
    "/v1/responses": lambda text: {"input": text, "max_output_tokens": 16, "background": False},
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
    """Requests by their outcome: a status, `left` or `failed`."""
    samples: dict[int, list[Sample]] = field(default_factory=dict)
    """By process id."""
    databases: list[tuple[float, float]] = field(default_factory=list)
    """Seconds and MiB."""
    began: float = field(default_factory=time.monotonic)
    pause: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while clients may ask."""

    async def ask_on(self, session: aiohttp.ClientSession) -> None:
        """Send one request after the other, until cancelled."""
        while True:
            await self.pause.wait()
            leaves = self.chance.random() < _LEAVES
            within_s = self.chance.uniform(0.0, _LEAVES_WITHIN_S) if leaves else 120.0
            try:
                outcome = await asyncio.wait_for(self._ask(session), within_s)
            except TimeoutError:
                outcome = "left" if leaves else "failed"
            except (aiohttp.ClientError, OSError, ValueError, KeyError):
                outcome = "failed"
            self.ended[outcome] += 1
            await asyncio.sleep(0.05 if outcome != "failed" else 0.5)

    async def _ask(self, session: aiohttp.ClientSession) -> str:
        """Send a request of any API, and read its answer. Returns the status."""
        subject = self.chance.choice(SUBJECTS)
        kind = self.chance.random()
        if kind < 0.1:
            return await _read(session.get(self.chance.choice(_GET)))
        if kind < 0.5:
            api = self.chance.choice(list(PATHS))
            return await _read(
                session.post(PATHS[api], json=request_body(MODEL, subject, self.chance.randint(4, 120), api))
            )
        if kind < 0.53:
            return await self._batch(session, subject)
        path = self.chance.choice(list(_WITHOUT_STREAM))
        return await _read(session.post(path, json={"model": MODEL, **_WITHOUT_STREAM[path](subject)}))

    async def _batch(self, session: aiohttp.ClientSession, subject: str) -> str:
        """Upload a file, make a batch of it, and sometimes cancel the batch."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": subject}], "max_tokens": 8}
        lines = (
            {"custom_id": str(number), "method": "POST", "url": PATHS["chat"], "body": body}
            for number in range(4)
        )
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", "\n".join(map(json.dumps, lines)), filename="soak.jsonl")
        async with session.post("/v1/files", data=form) as reply:
            if reply.status != 200:
                return str(reply.status)
            file = (await reply.json())["id"]
        wanted = {"input_file_id": file, "endpoint": PATHS["chat"], "completion_window": "24h"}
        async with session.post("/v1/batches", json=wanted) as reply:
            batch = (await reply.json()).get("id")
        if batch and self.chance.random() < 0.3:
            return await _read(session.post(f"/v1/batches/{batch}/cancel"))
        return str(reply.status)

    async def disturb(self, minutes: float) -> None:
        """Kill a process, or pause until the model is at zero, again and again, until cancelled."""
        every_s = max(20.0, 60.0 * minutes / 24)
        while True:
            await asyncio.sleep(every_s)
            if self.chance.random() < 0.5:
                self.pause.clear()
                await asyncio.sleep(_AT_ZERO_S)
                self.pause.set()
                continue
            role = self.chance.choice(KILLED)
            for process in await asyncio.to_thread(self.server.processes):
                with suppress(psutil.Error):
                    if name_of(process.cmdline()) == role:
                        say(f"killing {role} ({process.pid})")
                        process.kill()
                        break

    async def sample_on(self, every_s: float) -> None:
        """Read the processes and the databases every `every_s` seconds, until cancelled."""
        while True:
            await asyncio.to_thread(self.read)
            await asyncio.sleep(every_s)

    def read(self) -> None:
        """Read every process and the databases once."""
        now, asked = time.monotonic() - self.began, self.ended.total()
        for process in self.server.processes():
            with suppress(psutil.Error):
                name = name_of(process.cmdline())
                if name is not None:
                    sample = Sample(
                        name, now, asked, process.memory_info().rss / _MIB,
                        process.num_fds(), process.num_threads(),
                    )  # fmt: skip
                    self.samples.setdefault(process.pid, []).append(sample)
        files = (each.stat().st_size for each in self.folder.rglob("*.db*") if each.exists())
        self.databases.append((now, sum(files) / _MIB))


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

    Growth counts if it exceeds the bound by twice its standard error. Only samples after `from_s` count.
    """
    rows, passed = [], True
    for pid, all_of_it in sorted(samples.items(), key=lambda item: (item[1][-1].name, item[0])):
        late = [sample for sample in all_of_it if sample.at_s >= from_s]
        if len(late) < 4:
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


async def run(soak: Soak, minutes: float) -> None:
    """Let clients ask for `minutes` minutes. Raises ServerError if the server ends."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    url = f"http://127.0.0.1:{soak.server.port}"
    soak.pause.set()
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        work = [soak.ask_on(session) for _ in range(_WORKERS)]
        work += [soak.disturb(minutes), soak.sample_on(max(1.0, minutes * 60 / 240))]
        async with asyncio.timeout(60 * minutes):
            await asyncio.gather(*work)


def main(argv: Sequence[str]) -> int:
    """Return 0; 1 if the server fails, 3 if a process grows too much, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0, help="of random draws")
    parser.add_argument("--config", type=Path, default=REPOSITORY / "config" / "serve.zero.yaml")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/soak.json"))
    given = parser.parse_args(argv)
    end_on_signals()
    work, port = Path(tempfile.mkdtemp(prefix="ti-", dir="/tmp")), free_port()
    command = [sys.executable, "-m", "serve_app.cli.main", "run", str(given.config), "--port", str(port)]
    databases = {
        name: f"sqlite:///{work}/{file}.db"
        for name, file in (("TIDESERVE_LEDGER_URL", "ledger"), ("TIDESERVE_BATCH_DATABASE_URL", "batches"))
    }
    environ = {**os.environ, **cluster_environment(work), "TMPDIR": str(work), **databases}
    server = ServerProcess("tideserve", [*command, "--restart"], environ, port, work / "server.log")
    soak = Soak(server, work, random.Random(given.seed))
    status = 0
    try:
        server.wait_ready("/health", _START_S)
        asyncio.run(run(soak, given.minutes))
    except TimeoutError:
        pass  # the minutes are over
    except ServerError as error:
        say(f"FAILED: {error}")
        status = 1
    except KeyboardInterrupt:
        status = 130
    finally:
        server.stop()
        stop_descendants(TERM_S)
        shutil.rmtree(work, ignore_errors=True)
    text, passed = judge(soak.samples, given.minutes * 15)
    for facts in (machine(), versions()):
        print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"\n{soak.ended.total()} requests: {dict(soak.ended.most_common())}\n\n{text}")
    if soak.databases:
        print(f"\ndatabases: {soak.databases[0][1]:.2f} to {soak.databases[-1][1]:.2f} MiB")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    rows = {pid: [asdict(sample) for sample in found] for pid, found in soak.samples.items()}
    given.out.write_text(json.dumps({"samples": rows, "databases": soak.databases}), encoding="utf-8")
    return status or (0 if passed else 3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
