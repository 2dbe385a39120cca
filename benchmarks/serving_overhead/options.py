"""The command line of the benchmark."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks import REPOSITORY
from benchmarks.serving_overhead.servers import KINDS, Engine

_RESULTS = REPOSITORY / "benchmarks" / "results" / "serving_overhead"
_MODEL = REPOSITORY / "serve_app" / "weights" / "tideserve_tiny"


@dataclass(frozen=True, slots=True)
class Options:
    """A checked command line. Times in seconds."""

    servers: tuple[str, ...]
    concurrency: tuple[int, ...]
    requests: tuple[int, ...]
    """Requests per worker, one number for each concurrency."""
    rounds: int
    warmup: int
    max_tokens: int
    engine: Engine
    exclusive: bool
    settle_s: float
    start_timeout_s: float
    level_timeout_s: float
    tideserve_config: Path | None
    extra_env: Mapping[str, Mapping[str, str]]
    out: Path


def parse(argv: list[str]) -> Options:
    """Parse and check; argparse prints what is wrong and exits with 2."""
    parser = _parser()
    given = parser.parse_args(argv)
    servers = tuple(given.servers.split(","))
    for name in servers:
        if name not in KINDS:
            parser.error(f"--servers: {name!r} is none of {', '.join(KINDS)}")
    if len(set(servers)) != len(servers):
        parser.error("--servers: names must be distinct")
    concurrency = numbers(parser, "--concurrency", given.concurrency)
    if len(set(concurrency)) != len(concurrency):
        parser.error("--concurrency: numbers must be distinct")
    requests = numbers(parser, "--requests", given.requests)
    if len(requests) == 1:
        requests = requests * len(concurrency)
    if len(requests) != len(concurrency):
        parser.error(f"--requests: {len(requests)} numbers for {len(concurrency)} concurrencies")
    if given.rounds < 1 or given.warmup < 0 or given.max_tokens < 2:
        parser.error("--rounds must be at least 1, --warmup at least 0, --max-tokens at least 2 (for ITL)")
    values = vars(given) | {"servers": servers, "concurrency": concurrency, "requests": requests}
    values["engine"] = take_engine(parser, values)
    values["extra_env"] = _environment(parser, values.pop("env"))
    return Options(**values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving_overhead",
        description="The same streamed chat load against several servers, in alternating rounds.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--servers",
        default="bare,bare-uniproc,tideserve,ray-llm,ray-llm-direct",
        help=f"of {', '.join(KINDS)}; ratios to the first",
    )
    add("--concurrency", default="1,8,32", help="concurrent requests")
    add("--requests", default="32,16,8", help="per worker and round: one number, or one for each concurrency")
    add("--rounds", type=int, default=5)
    add("--warmup", type=int, default=4, help="requests per worker before each level, not counted")
    add("--max-tokens", type=int, default=64, help="tokens of every reply")
    add("--exclusive", action=argparse.BooleanOptionalAction, default=True, help="one server up at a time")
    add(
        "--settle",
        dest="settle_s",
        metavar="S",
        type=float,
        default=10.0,
        help="seconds between a server's first reply and its load",
    )
    add(
        "--start-timeout",
        dest="start_timeout_s",
        metavar="S",
        type=float,
        default=240.0,
        help="seconds a server may take to its first reply",
    )
    add(
        "--level-timeout",
        dest="level_timeout_s",
        metavar="S",
        type=float,
        default=300.0,
        help="seconds one level of load may take",
    )
    add("--out", type=Path, default=_RESULTS, help="folder for results and logs")
    add(
        "--env",
        action="append",
        default=[],
        metavar="[SERVER:]KEY=VALUE",
        help="more environment for servers",
    )
    add("--tideserve-config", type=Path, help="a Serve configuration in place of the generated one")
    add_engine(parser)("--kv-cache-gib", type=int, default=1, help="on the CPU only")
    return parser


def add_engine(parser: argparse.ArgumentParser) -> Callable[..., argparse.Action]:
    """Add the engine arguments that several benchmarks have; returns what adds another one to their group."""
    engine = parser.add_argument_group("engine arguments, the same for every server").add_argument
    engine("--model", default=str(_MODEL), help="a folder, or a Hugging Face id")
    engine("--served-model-name", default="tideserve-tiny")
    engine("--max-model-len", type=int, default=2048)
    engine("--max-num-seqs", type=int, default=64)
    engine("--dtype", default="bfloat16")
    engine("--enforce-eager", action=argparse.BooleanOptionalAction, default=True)
    engine("--device", choices=("cpu", "gpu"), default="cpu")
    engine("--load-format", default="auto", help="of vLLM; `dummy` makes weights up")
    return engine


def take_engine(parser: argparse.ArgumentParser, values: dict[str, Any]) -> Engine:
    """Check the engine arguments among `values`, and take them out."""
    folder = Path(values["model"])
    if folder.is_dir() and not (folder / "config.json").exists():
        parser.error(f"--model: no config.json in {folder}")
    if not folder.is_dir() and (folder.is_absolute() or values["model"].count("/") != 1):
        parser.error(f"--model: {folder} is neither a folder nor a Hugging Face id")
    if folder.is_dir():
        values["model"] = folder.resolve()
    return Engine(**{field.name: values.pop(field.name) for field in fields(Engine)})


def numbers(parser: argparse.ArgumentParser, option: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers of a list such as `1,8,32`, all at least 1."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        parser.error(f"{option}: {text!r} is not a list of whole numbers")
    if min(found) < 1:
        parser.error(f"{option}: numbers must be at least 1")
    return found


def _environment(parser: argparse.ArgumentParser, entries: list[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        server, colon, name = key.rpartition(":")
        if not equals or not name or (colon and server not in KINDS):
            parser.error(f"--env: {entry!r} is not [SERVER:]KEY=VALUE with a server of {', '.join(KINDS)}")
        found.setdefault(server, {})[name] = value
    return found
