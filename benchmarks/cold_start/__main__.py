"""`python -m benchmarks.cold_start`: see README.md beside this file."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.cold_start.measure import SYSTEMS, Case, Measured, measure
from benchmarks.cold_start.report import to_markdown
from benchmarks.common.progress import say
from benchmarks.serving_overhead.__main__ import add_engine, carry_out, numbers, take_engine
from loadtests.machine import machine, versions

_KV_CACHE_BYTES = 256 << 20
_TIMEOUT_S = 240.0


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse and check; argparse prints what is wrong and exits with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cold_start",
        description="From zero replicas to the first token, beside bare `vllm serve`.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--systems", default="tideserve,vllm", help=f"of {', '.join(SYSTEMS)}; ratios to the first")
    add("--fresh", action="store_const", dest="systems", const="fresh,vllm", default=argparse.SUPPRESS,
        help="short for --systems fresh,vllm")  # fmt: skip
    add("--replicas", default="1,3", help="how many start at once; a list")
    add("--burst", type=int, default=24, help="requests at once to more than one replica")
    add("--rounds", type=int, default=3, help="starts of each system")
    add("--out", type=Path, default=REPOSITORY / "benchmarks" / "results" / "cold_start")
    add_engine(parser)
    options = parser.parse_args(argv)
    options.systems = options.systems.split(",")
    for name in options.systems:
        if name not in SYSTEMS or options.systems.count(name) > 1:
            parser.error(f"--systems: {name!r} must be one of {', '.join(SYSTEMS)}, and given once")
    options.replicas = list(dict.fromkeys(numbers(parser, "--replicas", options.replicas)))
    if options.rounds < 1:
        parser.error(f"--rounds = {options.rounds}: must be at least 1")
    if options.burst < max(options.replicas):
        most = max(options.replicas)
        parser.error(f"--burst: {options.burst} requests cannot be answered by {most} replicas")
    options.engine = replace(take_engine(parser, options), kv_cache_bytes=_KV_CACHE_BYTES)
    return options


def plan(systems: Sequence[str], replicas: Sequence[int], rounds: int) -> Iterator[tuple[str, int, int]]:
    """Yield system, replicas and round: alternating, from another system each round."""
    for count in replicas:
        for at in range(rounds):
            first = at % len(systems)
            for system in (*systems[first:], *systems[:first]):
                yield system, count, at + 1


def _benchmark(options: argparse.Namespace, work: Path) -> str:
    """Make every start, one after the other, and return the tables."""
    facts = {"Machine": machine(), "Versions": versions(), "Engine": {"": " ".join(options.engine.cli())}}
    starts: list[Measured] = []
    with (options.out / "starts.jsonl").open("w", encoding="utf-8") as lines:
        for system, replicas, at in plan(options.systems, options.replicas, options.rounds):
            name = f"{len(starts) + 1:02}-{system}"
            folder = work / str(len(starts) + 1)
            case = Case(system, options.engine, replicas, options.burst, folder, options.out / "logs" / name)
            starts.append(measure(case, at, _TIMEOUT_S))
            print(json.dumps(asdict(starts[-1])), file=lines, flush=True)
            one = starts[-1]
            say(
                f"round {at}  {system:12} {replicas} at once: first token {one.first_token_s:.2f} s, "
                f"all {one.all_answered_s:.2f} s, CPU {sum(one.cpu_s.values()):.1f} s, "
                f"{sum(one.pss_bytes.values()) / 2**30:.2f} GiB, others {one.other_cores:.2f} cores"
            )
    return to_markdown(starts, facts)


def main(argv: list[str]) -> int:
    """The exit status of `carry_out`."""
    options = parse(argv)
    return carry_out(options.out, lambda work: _benchmark(options, work))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
