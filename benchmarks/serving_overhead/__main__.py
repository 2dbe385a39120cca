"""`python -m benchmarks.serving_overhead`: see README.md beside this file."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

from httpx import HTTPError

from benchmarks import REPOSITORY
from benchmarks.common.interruption import end_on_signals
from benchmarks.common.progress import say
from benchmarks.common.server_process import ServerError
from benchmarks.common.supervise import TERM_S
from benchmarks.serving_overhead.client import LoadError
from benchmarks.serving_overhead.load import Level, real_time
from benchmarks.serving_overhead.report import to_markdown
from benchmarks.serving_overhead.rounds import Plan, run
from benchmarks.serving_overhead.servers import COLLECTOR, TITLES, TRACED, WATCHED, Engine
from loadtests.machine import machine, versions
from serve_app.cli.ray_processes import stop_descendants
from serve_app.weights import embedded_model_path


def parse(argv: list[str]) -> tuple[Plan, Path]:
    """The plan and the folder for results; argparse prints what is wrong and exits with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving_overhead",
        description="The same streamed chat load against several servers, in alternating rounds.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--servers",
        default=",".join(name for name in TITLES if name not in (TRACED, WATCHED)),
        help="ratios are to the first",
    )
    add("--concurrency", default="1,8,32", help="concurrent requests")
    add("--requests", default="32,16,8", help="per worker and round: one number, or one for each concurrency")
    add("--rounds", type=int, default=5)
    add("--warmup", type=int, default=4, help="requests per worker before each level, not counted")
    add("--settle", type=float, default=10.0, help="seconds between a server's first reply and its load")
    add("--out", type=Path, default=REPOSITORY / "benchmarks" / "results" / "serving_overhead")
    add_engine(parser)
    given = parser.parse_args(argv)
    servers = given.servers.split(",")
    for name in servers:
        if name not in TITLES or servers.count(name) > 1:
            parser.error(f"--servers: {name!r} must be one of {', '.join(TITLES)}, and given once")
    if TRACED in servers and not os.environ.get(COLLECTOR):
        parser.error(f"--servers: {TRACED} needs {COLLECTOR}, the URL of a collector that listens for gRPC")
    concurrency = numbers(parser, "--concurrency", given.concurrency)
    requests = numbers(parser, "--requests", given.requests)
    requests = requests * len(concurrency) if len(requests) == 1 else requests
    if len(requests) != len(concurrency) or len(set(concurrency)) != len(concurrency):
        parser.error("--requests: one number, or one for each of the distinct numbers of --concurrency")
    if given.rounds < 1 or given.warmup < 0 or given.settle <= 0:
        parser.error("--rounds must be at least 1, --warmup at least 0, --settle above 0")
    pairs = zip(concurrency, requests, strict=True)
    levels = [Level(at_once, each, given.warmup) for at_once, each in pairs]
    return Plan(servers, take_engine(parser, given), levels, given.rounds, given.settle), given.out


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the engine arguments that several benchmarks have."""
    engine = parser.add_argument_group("engine arguments, the same for every server").add_argument
    engine("--model", default=str(embedded_model_path()), help="a folder, or a Hugging Face id")
    engine("--max-model-len", type=int, default=2048)
    engine("--max-num-seqs", type=int, default=64)
    engine("--dtype", default="bfloat16")
    engine("--enforce-eager", action=argparse.BooleanOptionalAction, default=True)
    engine("--device", choices=("cpu", "gpu"), default="cpu")
    engine("--load-format", default="auto", help="of vLLM; `dummy` makes weights up")


def take_engine(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Engine:
    """Check the engine arguments of a command line."""
    folder = Path(given.model)
    if folder.is_dir() and not (folder / "config.json").exists():
        parser.error(f"--model: no config.json in {folder}")
    if not folder.is_dir() and (folder.is_absolute() or given.model.count("/") != 1):
        parser.error(f"--model: {folder} is neither a folder nor a Hugging Face id")
    values = {one.name: getattr(given, one.name) for one in fields(Engine) if hasattr(given, one.name)}
    return Engine(**values | {"model": folder.resolve() if folder.is_dir() else given.model})


def numbers(parser: argparse.ArgumentParser, option: str, text: str) -> list[int]:
    """Return the whole numbers of a list such as `1,8,32`, all at least 1."""
    if not all(part.isdigit() and int(part) for part in text.split(",")):
        parser.error(f"{option}: {text!r} is not a list of whole numbers of at least 1")
    return [int(part) for part in text.split(",")]


def _benchmark(plan: Plan, work: Path, out: Path) -> str:
    """Measure the servers, and return the tables."""
    facts = {"Machine": machine(), "Versions": versions()}
    with real_time() as allowed:
        if not allowed:
            say("NOTE normal priority (no CAP_SYS_NICE): the client's waits for a core look like latency")
    results = run(plan, work, out)
    facts["Settings"] = {"engine": " ".join(plan.engine.cli()), "rounds": str(plan.rounds)}
    document = json.dumps({**facts, **asdict(results)}, indent=1)
    (out / "results.json").write_text(document + "\n", encoding="utf-8")
    return to_markdown(results, facts)


def main(argv: list[str]) -> int:
    """The exit status of `carry_out`."""
    plan, out = parse(argv)
    return carry_out(out, lambda work: _benchmark(plan, work, out))


def carry_out(out: Path, benchmark: Callable[[Path], str]) -> int:
    """Print the tables of a benchmark and write them to `out`. No process or temporary file is left.

    Args:
        out: The folder for results.
        benchmark: Takes a folder with a short path, since Ray puts unix sockets below it. Returns tables.

    Returns:
        0 when all went well, 1 when a server did not start or answer, 130 when interrupted.
    """
    end_on_signals()
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="so-", dir="/tmp"))
    try:
        text = benchmark(work)
    except (LoadError, ServerError, HTTPError) as error:
        say(f"FAILED: {error or type(error).__name__}")
        say(f"server logs: {out / 'logs'}; Ray's own logs: {work}")
        return 1
    except KeyboardInterrupt:
        shutil.rmtree(work, ignore_errors=True)
        say("interrupted")
        return 130
    finally:
        stop_descendants(TERM_S)
    shutil.rmtree(work, ignore_errors=True)
    (out / "results.md").write_text(text, encoding="utf-8")
    print(text)
    say(f"results: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
