"""Wake-ups and CPU of each process of an application while no request comes.

    python -m benchmarks.idle [CONFIG ...]

A wake-up is a voluntary context switch: a thread that waited got a core again. A busy machine and a quiet one
count the same wake-ups, but not the same CPU seconds.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import REPOSITORY
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

_START_S = 300.0
_TICKS = os.sysconf("SC_CLK_TCK")
_LEFT_OUT = ("RAY_", "VLLM_")
"""Variables of the caller's shell would change what is measured."""
_BUSIEST = 3

Thread = tuple[int, int, str]
"""The process's id, the thread's id, and the thread's name."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Wake-ups and CPU seconds of threads since they began."""

    names: Mapping[int, str]
    """The name of each process, by id."""
    threads: Mapping[Thread, tuple[int, float]]

    def since(self, before: "Reading") -> "Reading":
        """Return what has been added after `before`. Threads that have ended meanwhile are left out."""
        added = {}
        for thread, (wakes, cpu_s) in self.threads.items():
            earlier = before.threads.get(thread, (0, 0.0))
            added[thread] = (wakes - earlier[0], cpu_s - earlier[1])
        return Reading(self.names, added)

    def wakes(self) -> Counter[str]:
        """Return the wake-ups by process."""
        found = Counter[str]()
        for (pid, _, _), (wakes, _) in self.threads.items():
            found[self.names[pid]] += wakes
        return found


def read(processes: Iterable[psutil.Process]) -> Reading:
    """Read every thread of those of `processes` that have not ended."""
    names, threads = {}, {}
    for process in processes:
        with suppress(psutil.Error, OSError):
            name = name_of(process.cmdline())
            if name is None:
                continue
            names[process.pid] = name
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                with suppress(OSError):
                    thread = process.pid, int(task.name), (task / "comm").read_text().strip()
                    wakes = (task / "status").read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0]
                    user, system = (task / "stat").read_text().rpartition(")")[2].split()[11:13]
                    threads[thread] = int(wakes), (int(user) + int(system)) / _TICKS
    return Reading(names, threads)


def to_table(used: Reading, seconds: float) -> str:
    """Return wake-ups and CPU by process, the dearest process first."""
    count, wakes = Counter(used.names.values()), used.wakes()
    cpu_s: dict[str, float] = defaultdict(float)
    by_thread: dict[str, Counter[str]] = defaultdict(Counter)
    for (pid, _, thread), (woken, spent_s) in used.threads.items():
        cpu_s[used.names[pid]] += spent_s
        by_thread[used.names[pid]][thread] += woken
    rows = []
    for name in sorted(count, key=lambda name: (-cpu_s[name], -wakes[name])):
        busiest = by_thread[name].most_common(_BUSIEST)
        threads = ", ".join(f"{thread} {woken / seconds:.0f}" for thread, woken in busiest)
        rows.append(_row(name, count[name], wakes[name] / seconds, cpu_s[name] / seconds, threads))
    rows.append(_row("all", count.total(), wakes.total() / seconds, sum(cpu_s.values()) / seconds, ""))
    return table(["process", "processes", "wake-ups/s", "cores", "busiest threads, wake-ups/s"], rows)


def _row(name: str, processes: int, wakes: float, cores: float, threads: str) -> list[str]:
    return [name, str(processes), f"{wakes:.1f}", f"{cores:.4f}", threads]


@contextmanager
def serving(config: Path, ready: str = "/ready", *options: str) -> Iterator[tuple[ServerProcess, Path]]:
    """Serve `config` on a cluster of its own within the block. Yields the server and its folder.

    Raises ServerError if GET `ready` does not answer 200 in time.
    """
    work, port = (
        Path(tempfile.mkdtemp(prefix="ti-", dir="/tmp")),
        free_port(),
    )  # Ray's sockets have long names
    command = [sys.executable, "-m", "serve_app.cli.main", "run", str(config.resolve()), "--port", str(port)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
    state = {"TMPDIR": str(work), "XDG_STATE_HOME": str(work / "state")}
    environ = {**kept, **cluster_environment(work), **state}
    server = ServerProcess("tideserve", [*command, *options], environ, port, work / "server.log")
    try:
        server.wait_ready(ready, _START_S)
        yield server, work
    finally:
        server.stop()
        shutil.rmtree(work, ignore_errors=True)


def measure(config: Path, settle_s: float, seconds: float) -> Reading:
    """Start an application, let it settle, and return what it uses in `seconds`."""
    with serving(config) as (server, _):
        time.sleep(settle_s)
        before = read(server.processes())
        time.sleep(seconds)
        return read(server.processes()).since(before)


def main(argv: Sequence[str]) -> int:
    """Return 0; 1 if an application does not start, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    default = [REPOSITORY / "config" / name for name in ("serve.yaml", "serve.zero.yaml")]
    parser.add_argument("configs", nargs="*", type=Path, metavar="CONFIG", default=default)
    parser.add_argument("--settle", type=float, default=60.0, metavar="S", help="from ready to the start")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of each measurement")
    given = parser.parse_args(argv)
    end_on_signals()
    for facts in (machine(), versions()):
        print(", ".join(f"{name} {value}" for name, value in facts.items()))
    try:
        for config in given.configs:
            print(f"\n{config.name}, load average before the start {os.getloadavg()[0]:.1f}\n", flush=True)
            print(to_table(measure(config, given.settle, given.seconds), given.seconds), flush=True)
    except ServerError as error:
        say(f"FAILED: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    finally:
        stop_descendants(TERM_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
