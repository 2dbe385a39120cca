"""`python -m benchmarks.saturation`: see README.md beside this file."""

import argparse
import asyncio
import resource
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop

from benchmarks import REPOSITORY
from benchmarks.common.interruption import end_on_signals
from benchmarks.common.progress import say
from benchmarks.common.server_process import ServerError
from benchmarks.common.supervise import TERM_S
from benchmarks.common.whole_lines import whole_lines
from benchmarks.saturation.measure import Measured, Plan, measure
from benchmarks.saturation.streams import StreamError
from benchmarks.saturation.summary import memory_table, rates_table
from benchmarks.saturation.systems import MOST_TOKENS, SYSTEMS, engine, setup
from benchmarks.serving_overhead.options import numbers
from benchmarks.serving_overhead.rounds import rotated
from benchmarks.serving_overhead.servers import start
from loadtests.machine import machine, versions
from serve_app.cli.ray_processes import stop_descendants

_MODEL = REPOSITORY / "serve_app" / "weights" / "tideserve_tiny"
_START_TIMEOUT_S = 240.0
_SETTLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """A checked command line."""

    systems: tuple[str, ...]
    streams: tuple[int, ...]
    rounds: int
    rate: float
    seconds: float
    ladder: bool
    out: Path | None


def parse(argv: Sequence[str]) -> Options:
    """Parse and check; argparse prints what is wrong and exits with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.saturation",
        description="What one front end and one ingress replica carry when the engine core costs nothing.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--systems", default=",".join(SYSTEMS), help=f"of {', '.join(SYSTEMS)}")
    add(
        "--streams",
        default="32,256,1024,1024,1024",
        help="open at once, one number after the other on the same server",
    )
    add("--rounds", type=int, default=3, help="starts of each system")
    add("--rate", type=float, default=8000.0, help="tokens/s of all streams together")
    add("--seconds", type=float, default=6.0, help="of each measurement at that rate")
    add(
        "--ladder",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also raise the rate to the most that is carried",
    )
    add("--out", type=Path, help="a file of measurements that those made now are added to and summed up with")
    given = parser.parse_args(list(argv))
    systems = tuple(given.systems.split(","))
    if unknown := set(systems) - set(SYSTEMS):
        parser.error(f"--systems: {', '.join(unknown)} is none of {', '.join(SYSTEMS)}")
    streams = numbers(parser, "--streams", given.streams)
    if given.rounds < 1 or given.rate <= 0 or given.seconds <= 0:
        parser.error("--rounds must be at least 1, --rate and --seconds more than 0")
    return Options(systems, streams, given.rounds, given.rate, given.seconds, given.ladder, given.out)


def run(options: Options, work: Path) -> list[Measured]:
    """Every system in every round, another one first in each, freshly started."""
    plan = Plan("tideserve-tiny", options.rate, options.seconds, options.ladder, MOST_TOKENS)
    common = setup(engine(_MODEL, max(options.streams)), work)
    found = _earlier(options.out)
    first = 1 + max((one.round for one in found), default=0)
    for number in range(first, first + options.rounds):
        for kind in rotated([SYSTEMS[name] for name in options.systems], number - 1):
            folder = work / f"{number}{kind.name[0]}"  # short, too
            server = start(kind, common, folder, work / f"{number}-{kind.name}.log")
            try:
                server.wait_ready(kind.ready_path, _START_TIMEOUT_S)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(asyncio.sleep(_SETTLE_S))
                    for streams in options.streams:
                        found.append(runner.run(measure(server, streams, number, plan, say)))
                        _keep(found[-1], options.out)
            finally:
                server.stop()
    return found


def _earlier(path: Path | None) -> list[Measured]:
    lines = [] if path is None else whole_lines(path)
    return [msgspec.json.decode(line, type=Measured) for line in lines]


def _keep(one: Measured, path: Path | None) -> None:
    if path is not None:
        with path.open("ab") as lines:
            lines.write(msgspec.json.encode(one) + b"\n")


def main(argv: Sequence[str]) -> int:
    """0; 1 when a system does not serve, 2 for a wrong command line, 130 when interrupted."""
    options = parse(argv)
    end_on_signals()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a stream is a connection
    facts = machine()
    work = Path(tempfile.mkdtemp(prefix="sa-", dir="/tmp"))  # short: Ray puts unix sockets below it
    try:
        found = run(options, work)
    except (ServerError, StreamError, TimeoutError) as error:
        say(f"FAILED: {error!r}; logs: {work}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    finally:
        stop_descendants(TERM_S)
    shutil.rmtree(work, ignore_errors=True)
    for title, group in (("Machine", facts), ("Versions", versions())):
        print(f"- **{title}:** " + ", ".join(f"{name} {value}" for name, value in group.items()))
    print(f"- **Rounds:** {len({one.round for one in found})}, alternating; medians; ratios round by round")
    print(f"\nAt {options.rate:,.0f} tokens/s:\n\n" + rates_table(found, lambda one: one.paced))
    if any(one.most is not None for one in found):
        print("\nAt the most that is carried:\n\n" + rates_table(found, lambda one: one.most))
    print("\n" + memory_table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
