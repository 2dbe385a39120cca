"""`python -m benchmarks.idle`: see README.md beside this file."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import REPOSITORY
from benchmarks.chaos.cpu_by_process import Reading, read
from benchmarks.common.interruption import end_on_signals
from benchmarks.common.markdown import table
from benchmarks.common.progress import say
from benchmarks.common.server_process import ServerError, ServerProcess
from benchmarks.common.supervise import TERM_S
from benchmarks.serving_overhead.servers import cluster_env
from loadtests.machine import machine, versions
from serve_app.cli.listening import free_port
from serve_app.cli.ray_processes import stop_descendants

_START_TIMEOUT_S = 240.0
_LEFT_OUT = ("RAY_", "VLLM_")
"""Variables of the caller's shell would change what is measured."""


@dataclass(frozen=True, slots=True)
class Options:
    """A checked command line. Times in seconds."""

    config: Path
    variables: Mapping[str, str]
    """With these, a second application is measured beside the first."""
    rounds: int
    settle_s: float
    seconds: float


def measure(options: Options, variables: Mapping[str, str]) -> Reading:
    """Start an application, let it settle, and return what it uses per minute."""
    work = Path(tempfile.mkdtemp(prefix="ti-", dir="/tmp"))  # Short: Ray puts unix sockets below it.
    port = free_port()
    command = [sys.executable, "-m", "serve_app.cli.main", "run", str(options.config), "--port", str(port)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
    env = {**kept, **cluster_env(work), "TMPDIR": str(work), **variables}
    server = ServerProcess("tideserve", command, env, port, work / "server.log")
    try:
        server.wait_ready("/ready", _START_TIMEOUT_S)
        time.sleep(options.settle_s)
        before, began = read(server.processes()), time.monotonic()
        time.sleep(options.seconds)
        after, took_s = read(server.processes()), time.monotonic() - began
    finally:
        server.stop()
    shutil.rmtree(work, ignore_errors=True)
    return after.since(before, 60.0 / took_s)


def run(options: Options) -> list[list[Reading]]:
    """Measure each variant once per round, in turn; returns the readings by variant."""
    variants = [{}, options.variables] if options.variables else [{}]
    found: list[list[Reading]] = [[] for _ in variants]
    for number in range(options.rounds):
        for variables, readings in zip(variants, found, strict=True):
            readings.append(measure(options, variables))
            text = " ".join(f"{name}={value}" for name, value in variables.items())
            cores = readings[-1].total_s / 60.0
            say(f"round {number + 1}/{options.rounds}: {cores:.3f} cores {text}".rstrip())
    return found


def to_table(found: Sequence[Sequence[Reading]]) -> str:
    """CPU seconds per minute by process: the median over the rounds, and in all lowest to highest."""
    names = sorted(
        {name for readings in found for reading in readings for name in reading.cpu_s},
        key=lambda name: -median(reading.cpu_s.get(name, 0.0) for reading in found[0]),
    )

    def cell(readings: Sequence[Reading], name: str) -> str:
        return f"{median(reading.cpu_s.get(name, 0.0) for reading in readings):.2f}"

    def total(readings: Sequence[Reading]) -> tuple[str, str]:
        seconds = [reading.total_s for reading in readings]
        lowest, highest = min(seconds) / 60.0, max(seconds) / 60.0
        return f"{median(seconds):.2f}", f"{lowest:.3f} to {highest:.3f}"

    last = found[0][-1]
    rows = [
        [name, str(last.count.get(name, 0)), *(cell(readings, name) for readings in found)] for name in names
    ]
    totals = [total(readings) for readings in found]
    rows.append(["all", str(sum(last.count.values())), *(seconds for seconds, _ in totals)])
    rows.append(["all, cores", "", *(cores for _, cores in totals)])
    return table(["CPU s per minute", "processes", *["as it is", "with the variables"][: len(found)]], rows)


def parse(argv: Sequence[str]) -> Options:
    """Parse and check; argparse prints what is wrong and exits with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.idle",
        description="What an application costs by process while nobody asks anything of it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--config", type=Path, default=REPOSITORY / "config" / "serve.yaml", help="a Serve configuration")
    add(
        "--env",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="measure a second application with this variable, in turn with the first",
    )
    add("--rounds", type=int, default=2, help="starts of each application")
    add(
        "--settle",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds between readiness and the measurement",
    )
    add("--seconds", type=float, default=60.0, metavar="S", help="of each measurement")
    given = parser.parse_args(argv)
    if given.rounds < 1 or given.settle < 0 or given.seconds < 1:
        parser.error("--rounds and --seconds must be at least 1, --settle at least 0")
    pairs = [entry.partition("=") for entry in given.env]
    if wrong := [
        entry for entry, (name, equals, _) in zip(given.env, pairs, strict=True) if not (name and equals)
    ]:
        parser.error(f"--env: {wrong[0]!r} is not KEY=VALUE")
    variables = {name: value for name, _, value in pairs}
    return Options(given.config.resolve(), variables, given.rounds, given.settle, given.seconds)


def main(argv: Sequence[str]) -> int:
    """0; 1 when an application does not start, 2 for a wrong command line, 130 when interrupted."""
    options = parse(argv)
    end_on_signals()
    facts = machine()
    try:
        found = run(options)
    except ServerError as error:
        say(f"FAILED: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    finally:
        stop_descendants(TERM_S)
    for title, group in (("Machine", facts), ("Versions", versions())):
        print(f"- **{title}:** " + ", ".join(f"{name} {value}" for name, value in group.items()))
    print("\n" + to_table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
