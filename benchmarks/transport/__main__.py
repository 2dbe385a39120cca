"""`python -m benchmarks.transport`: see README.md beside this file."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from statistics import median

from benchmarks.common.markdown import table
from benchmarks.common.progress import say
from benchmarks.transport.pair import STEP_S, Plan, Side, measure
from loadtests.machine import machine, versions

CANDIDATES = {
    "zeromq": "ZeroMQ",
    "grpc_stream": "gRPC",
    "frames": "frames",
    "http_streams": "HTTP per stream (today)",
}
Found = Mapping[Plan, Sequence[tuple[Side, Side]]]


def run(streams: Sequence[int], rounds: int, seconds: float) -> Found:
    """Every candidate in every round, another one first in each."""
    names = list(CANDIDATES)
    found: dict[Plan, list[tuple[Side, Side]]] = {}
    for number in range(rounds):
        first = number % len(names)
        for count in streams:
            for name in names[first:] + names[:first]:
                for plan in (Plan(name, count, paced, seconds) for paced in (True, False)):
                    found.setdefault(plan, []).append(measure(plan))
            say(f"round {number + 1} with {count} streams is done")
    return found


def to_table(found: Found) -> str:
    """Medians over the rounds."""

    def cell(plan: Plan, digits: int, read: Callable[[Side, Side], float]) -> str:
        return f"{median(read(*sides) for sides in found[plan]):,.{digits}f}"

    rows = [
        [
            CANDIDATES[paced.candidate],
            str(paced.streams),
            cell(paced, 2, lambda engine, ingress: 1e6 * engine.cpu_per_token_s),
            cell(paced, 2, lambda engine, ingress: 1e6 * ingress.cpu_per_token_s),
            cell(paced, 2, lambda engine, ingress: 1e3 * ingress.p50_s),
            cell(paced, 2, lambda engine, ingress: 1e3 * ingress.p99_s),
            cell(paced, 0, lambda engine, ingress: engine.tokens / engine.wall_s),
            cell(saturated, 0, lambda engine, ingress: ingress.tokens / ingress.wall_s),
        ]
        for count in dict.fromkeys(plan.streams for plan in found)
        for name in CANDIDATES
        for paced, saturated in [[p for p in found if (p.candidate, p.streams) == (name, count)]]
    ]
    cpu = ("engine CPU µs/token", "ingress CPU µs/token")
    return table(["channel", "streams", *cpu, "P50 ms", "P99 ms", "tokens/s", "saturated tokens/s"], rows)


def main(argv: list[str]) -> int:
    """0, or 2 for a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transport",
        description="What a channel from an engine replica to an ingress replica costs per token.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--streams", default="1,32,256,1024", help="numbers of open streams")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each cell")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    given = parser.parse_args(argv)
    try:
        streams = [int(part) for part in given.streams.split(",")]
    except ValueError:
        parser.error(f"--streams: {given.streams!r} is not a list of whole numbers")
    if min(streams) < 1 or given.rounds < 1 or given.seconds < 0.1:
        parser.error("--streams and --rounds must be at least 1, --seconds at least 0.1")
    libraries = versions() | {name: metadata.version(name) for name in ("pyzmq", "grpcio", "msgspec")}
    for title, group in (("Machine", machine()), ("Versions", libraries)):
        print(f"- **{title}:** " + ", ".join(f"{name} {value}" for name, value in group.items()))
    pace = f"a step every {1e3 * STEP_S:g} ms, in the last column as fast as the channel takes them"
    print(
        f"- **Rounds:** {given.rounds}, alternating, of {given.seconds:g} s for each figure; medians; {pace}"
    )
    print("\n" + to_table(run(streams, given.rounds, given.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
