"""`python -m benchmarks.batch`: lines of a batch beside the same requests sent directly, on a stub engine.

The ingress, HAProxy, Ray Serve and the batch runner are real. The stub answers each request after `ANSWER_S`.
In each round the same lines are answered in three ways, with as many in flight: as a batch, by HTTP, and by
HTTP in the lane `background`. A batch lasts from its creation to its end, so the check of its input file and
the join of its results are included. docs/measurements.md has the figures.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import ray
from ray.serve import Application

from benchmarks import REPOSITORY
from benchmarks.chaos.roles import INGRESS, role_of
from benchmarks.common.markdown import table
from benchmarks.common.progress import say
from benchmarks.common.server_process import HOST, ServerProcess
from benchmarks.serving_overhead.__main__ import carry_out
from benchmarks.serving_overhead.client import LoadError
from benchmarks.serving_overhead.servers import Engine, Start
from benchmarks.serving_overhead.usage import read_usage
from loadtests.machine import machine
from serve_app.api.engine_client import EngineReply
from serve_app.app import build_application
from serve_app.batch.records import DAY_S, OPEN, Batch, Endpoint, new_id
from serve_app.batch.store import BatchStore
from serve_app.batch.tables import BATCHES
from serve_app.engine.data_plane import DataPlane
from serve_app.engine.engine_call import EngineCall
from serve_app.settings.load import knob_defaults, load_settings

ANSWER_S, START_S, LIMIT_S = 0.02, 240.0, 1800.0
MODEL, PAGE, BUILD = "stub", 100, "benchmarks.batch:build"
URL: Endpoint = "/v1/chat/completions"
BATCH = "batch"
DIRECT = {"direct": "", "direct, background": "X-Tideserve-Lane: background\r\n"}
"""The ways besides a batch, with their headers."""
_USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
_CHOICE = {"index": 0, "message": {"role": "assistant", "content": "Low."}, "finish_reason": "stop"}
_ANSWER = {"id": "a", "object": "chat.completion", "model": MODEL, "choices": [_CHOICE], "usage": _USAGE}
_RUN = f"""import sys
from serve_app.cli import config_file, main
config_file.IMPORT_PATH = {BUILD!r}  # the application that `tideserve run` accepts
sys.exit(main.main(sys.argv[1:]))"""


class StubEngine:
    """An engine replica without vLLM: the data plane of `Engine`, and the same answer to every request."""

    async def __init__(self, *_: Any, **__: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        self._plane = DataPlane(self)
        await self._plane.start(ray.util.get_node_ip_address())

    @asynccontextmanager
    async def call(self, call: EngineCall) -> AsyncIterator[EngineReply]:
        """Answer a call."""
        await asyncio.sleep(ANSWER_S)
        yield EngineReply(200, json.dumps(_ANSWER).encode())

    def record_replica_metadata(self) -> dict[str, str]:
        """Tell the ingress where this replica listens."""
        return {"address": self._plane.address, "token": self._plane.token, "identity": MODEL}


def build(args: dict[str, Any]) -> Application:
    """Return Tideserve's application with `StubEngine` in place of its engine."""
    return build_application(load_settings(args), knob_defaults(args), StubEngine)


class StubStart(Start):
    """A start of Tideserve with `build`."""

    def command(self, port: int) -> list[str]:
        """Return the command line of the server."""
        return [sys.executable, "-c", _RUN, *super().command(port)[3:]]


def start(concurrency: int, work: Path, log: Path) -> ServerProcess:
    """Start one engine replica and one ingress replica, which have `concurrency` lines in flight."""
    engine = Engine("embedded", MODEL, max_num_seqs=concurrency)
    config = engine.tideserve_config()
    (application,) = config["applications"]
    application["import_path"] = BUILD
    application["args"]["zygote"] = False
    application["deployments"][0]["user_config"]["autoscaling"][MODEL]["batch_concurrency"] = concurrency
    env = {"XDG_STATE_HOME": str(work), "PYTHONPATH": str(REPOSITORY)}
    return StubStart("tideserve", engine, work, config, env).server(log)


@dataclass(frozen=True, slots=True)
class Measured:
    """One way in one round."""

    lines_per_s: float
    ingress_ms: float
    """CPU of the ingress replica per line."""
    runner_mb: Sequence[float]
    """The resident memory of the batch runner, at each tenth of the lines."""


def bodies(lines: int) -> Iterator[bytes]:
    """Yield the bodies of requests, no two alike."""
    for number in range(lines):
        messages = [{"role": "user", "content": f"{number}: say what a tide is."}]
        yield json.dumps({"model": MODEL, "messages": messages, "max_tokens": 16}).encode()


def send_batch(client: httpx.Client, lines: int, note: Callable[[int], None]) -> float:
    """Run a batch, and return its seconds. Raises LoadError if it is not completed in full."""
    line = b'{"custom_id":"r%d","method":"POST","url":"%b","body":%b}\n'
    data = b"".join(line % (number, URL.encode(), body) for number, body in enumerate(bodies(lines)))
    file = client.post("/v1/files", files={"file": ("in.jsonl", data)}, data={"purpose": "batch"}).json()
    asked = {"input_file_id": file["id"], "endpoint": URL, "completion_window": "24h"}
    began = time.monotonic()
    batch = client.post("/v1/batches", json=asked).json()
    while batch["status"] in OPEN and time.monotonic() < began + LIMIT_S:
        time.sleep(0.25)
        batch = client.get(f"/v1/batches/{batch['id']}").json()
        note(batch["request_counts"]["completed"])
    if (batch["status"], batch["request_counts"]["completed"]) != ("completed", lines):
        raise LoadError(f"a batch was not completed in full within {LIMIT_S:.0f} s: {batch}")
    return time.monotonic() - began


async def send_directly(
    port: int, lines: int, concurrency: int, header: str, note: Callable[[int], None]
) -> float:
    """Send the lines over `concurrency` connections, and return the seconds. Raises LoadError."""
    left, answered = bodies(lines), count(1)
    head = f"POST {URL} HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n{header}"

    async def work() -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        with closing(writer):
            for body in left:
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)\ncontent-length: *(\d+)", answer)
                if not answer.startswith(b"HTTP/1.1 200 ") or length is None:
                    raise LoadError(f"an answer began with {answer!r}")
                await reader.readexactly(int(length[1]))
                note(next(answered))

    began = time.monotonic()
    try:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(work() for _ in range(concurrency)))
    except (EOFError, OSError) as error:  # a timeout is an OSError too
        raise LoadError(f"not all lines were answered: {error!r}") from None
    return time.monotonic() - began


def measure(way: str, server: ServerProcess, client: httpx.Client, lines: int, concurrency: int) -> Measured:
    """Have all lines answered in one way."""
    runner = next(each for each in server.processes() if role_of(each.cmdline()) == "batch-runner")
    runner_mb: dict[int, float] = {}

    def note(answered: int) -> None:
        tenth = answered * 10 // lines
        if tenth and tenth not in runner_mb:
            runner_mb[tenth] = runner.memory_info().rss / 1e6
            say(f"{way}: {answered} of {lines} lines, runner {runner_mb[tenth]:.0f} MB")

    before = read_usage(server.processes())
    if way == BATCH:
        seconds = send_batch(client, lines, note)
    else:
        seconds = asyncio.run(send_directly(server.port, lines, concurrency, DIRECT[way], note))
    cpu_s = read_usage(server.processes()).since(before).cpu_s[INGRESS]
    return Measured(lines / seconds, 1e3 * cpu_s / lines, list(runner_mb.values()))


def time_pages(client: httpx.Client, database: Path, listed: int) -> list[float]:
    """Add ended batches to the database. Return the times of all pages of their list, in ms."""
    now = int(time.time())
    one = Batch("", "", URL, "file-0", "24h", "completed", now, now + DAY_S, MODEL)
    store = BatchStore(f"sqlite:///{database}")
    with closing(store), store.begin() as connection:
        rows = [asdict(replace(one, id=new_id("batch"))) for _ in range(listed)]
        connection.execute(BATCHES.insert(), rows)
    times: list[float] = []
    query: dict[str, str | int] = {"limit": PAGE}
    more = True
    while more:
        began = time.perf_counter()
        page = client.get("/v1/batches", params=query).json()
        times.append(1e3 * (time.perf_counter() - began))
        more, query["after"] = page["has_more"], page["last_id"]
    return times


def report(rounds: Sequence[dict[str, Measured]], pages: Sequence[float]) -> str:
    """Return a table with medians, and sentences about the memory and the pages."""
    rows = []
    for way in rounds[0]:
        ratios = [each[BATCH].lines_per_s / each[way].lines_per_s for each in rounds]
        rate = median(each[way].lines_per_s for each in rounds)
        cpu = median(each[way].ingress_ms for each in rounds)
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append([way, f"{rate:.0f}", spread, f"{cpu:.2f} ms"])
    memory = "; ".join(", ".join(f"{mb:.0f}" for mb in each[BATCH].runner_mb) for each in rounds)
    return (
        f"{table(['way', 'lines/s', 'ratio of the batch to it', 'CPU of the ingress per line'], rows)}\n\n"
        f"Memory of the runner at each tenth of the lines, in MB, by round: {memory}.\n"
        f"Pages of {PAGE} batches: {len(pages)}, P50 {median(pages):.1f} ms, "
        f"P95 {quantiles(pages, n=20)[-1]:.1f} ms, longest {max(pages):.1f} ms.\n"
    )


def benchmark(options: argparse.Namespace, work: Path) -> str:
    """Measure all ways in all rounds, and the list."""
    server = start(options.concurrency, work / "s", options.out / "logs" / "server.log")
    try:
        say(f"ready after {server.wait_ready('/ready', START_S):.0f} s")
        hooks = {"response": [httpx.Response.raise_for_status]}
        with httpx.Client(base_url=f"http://{HOST}:{server.port}", timeout=60.0, event_hooks=hooks) as client:
            run = partial(measure, server=server, client=client, concurrency=options.concurrency)
            rounds = []
            for number in range(options.rounds):
                ways = [BATCH, *DIRECT]
                ways = ways[number % 3 :] + ways[: number % 3]
                rounds.append({way: run(way, lines=options.lines) for way in ways})
            pages = time_pages(client, work / "s" / "tideserve" / "batch.db", options.batches)
    finally:
        server.stop()
    facts = f"{options.lines} lines, {options.concurrency} in flight, on {', '.join(machine().values())}"
    return f"{facts}\n\n{report(rounds, pages)}"


def main(arguments: list[str]) -> int:
    """Return the exit status of `carry_out`. argparse prints what is wrong and exits with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.batch",
        description="Lines of a batch beside the same requests sent directly, on a stub engine.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    bounds = {
        "lines": (50_000, 100, 50_000),
        "rounds": (3, 1, 100),
        "concurrency": (128, 1, 1024),
        "batches": (10_000, 200, 90_000),
    }
    for name, (default, least, most) in bounds.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{least} to {most}")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "benchmarks" / "results" / "batch")
    options = parser.parse_args(arguments)
    for name, (_, least, most) in bounds.items():
        if not least <= (given := getattr(options, name)) <= most:
            parser.error(f"--{name} = {given}: must be {least} to {most}")
    return carry_out(options.out, partial(benchmark, options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
