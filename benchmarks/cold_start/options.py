"""The command line of the benchmark."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.cold_start.systems import SYSTEMS
from benchmarks.serving_overhead.options import add_engine, numbers, take_engine
from benchmarks.serving_overhead.servers import Engine

_RESULTS = REPOSITORY / "benchmarks" / "results" / "cold_start"


@dataclass(frozen=True, slots=True)
class Options:
    """A checked command line."""

    systems: tuple[str, ...]
    replicas: tuple[int, ...]
    """How many start at once, in one measurement each."""
    burst: int
    """Requests that are sent at once to more than one replica."""
    rounds: int
    traced: int
    """Further starts of each system with tracing, for the phases."""
    engine: Engine
    kv_cache_mib: int
    """On the CPU only."""
    timeout_s: float
    out: Path


def parse(argv: list[str]) -> Options:
    """Parse and check; argparse prints what is wrong and exits with 2."""
    parser = _parser()
    given = vars(parser.parse_args(argv))
    if given.pop("fresh"):
        given["systems"] = "fresh,vllm"
    systems = tuple(given["systems"].split(","))
    for name in systems:
        if name not in SYSTEMS:
            parser.error(f"--systems: {name!r} is none of {', '.join(SYSTEMS)}")
    replicas = numbers(parser, "--replicas", given["replicas"])
    for option, names in (("--systems", systems), ("--replicas", replicas)):
        if len(set(names)) != len(names):
            parser.error(f"{option}: each may be given once")
    if given["rounds"] < 0 or given["traced"] < 0 or given["rounds"] + given["traced"] == 0:
        parser.error("--rounds and --traced must be at least 0, and one of them at least 1")
    if given["burst"] < max(replicas):
        parser.error(f"--burst: {given['burst']} requests cannot be answered by {max(replicas)} replicas")
    if given["kv_cache_mib"] < 1 or given["timeout_s"] <= 0:
        parser.error("--kv-cache-mib and --timeout must be above 0")
    values = given | {"systems": systems, "replicas": replicas, "kv_cache_gib": 1}
    values["engine"] = take_engine(parser, values)
    return Options(**values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cold_start",
        description="From zero replicas to the first token, phase by phase, beside bare `vllm serve`.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--systems", default="tideserve,vllm", help=f"of {', '.join(SYSTEMS)}; ratios to the first")
    add("--fresh", action="store_true", help="short for --systems fresh,vllm")
    add("--replicas", default="1,3", help="how many start at once; a list")
    add("--burst", type=int, default=24, help="requests at once to more than one replica")
    add("--rounds", type=int, default=3, help="starts of each system without tracing: the totals")
    add("--traced", type=int, default=1, help="starts of each system with tracing: the phases")
    add("--timeout", dest="timeout_s", metavar="S", type=float, default=240.0,
        help="seconds one start may take")  # fmt: skip
    add("--out", type=Path, default=_RESULTS, help="folder for results and logs")
    add_engine(parser)("--kv-cache-mib", type=int, default=256, help="on the CPU only")
    return parser
