"""`python -m benchmarks.serving_overhead`: see README.md beside this file."""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.common.interruption import end_on_signals
from benchmarks.common.progress import say
from benchmarks.common.server_process import ServerError
from benchmarks.common.supervise import TERM_S
from benchmarks.serving_overhead import ray_llm
from benchmarks.serving_overhead.client import LoadError
from benchmarks.serving_overhead.load import Level, Load, Measured, can_raise
from benchmarks.serving_overhead.options import Options, parse
from benchmarks.serving_overhead.report import Report, draw, to_markdown, write
from benchmarks.serving_overhead.rounds import Outcome, Plan, Rounds
from benchmarks.serving_overhead.servers import KINDS, Engine, Kind, Setup
from loadtests.machine import machine, versions
from serve_app.cli.ray_processes import stop_descendants


def choose(names: tuple[str, ...], setup: Setup) -> tuple[tuple[Kind, ...], dict[str, str]]:
    """The servers that can run here, and why the others cannot."""
    chosen, skipped = [], {}
    for name in names:
        reason = KINDS[name].why_not(setup)
        if reason is None:
            chosen.append(KINDS[name])
        else:
            skipped[name] = reason
            say(f"SKIPPED {name}: {reason}")
    return tuple(chosen), skipped


def benchmark(options: Options, work: Path) -> Report:
    """Choose, run, summarise."""
    setup = Setup(options.engine, work, options.tideserve_config, options.extra_env)
    facts = machine()
    kinds, skipped = choose(options.servers, setup)
    if not kinds:
        raise ServerError("none of the servers can run here")
    notes = _notes(kinds, work)
    for note in notes:
        say(f"NOTE {note}")
    outcome = _run(options, kinds, setup)
    titles = {kind.name: kind.title for kind in kinds}
    return Report(
        titles, skipped, notes, _settings(options), facts, versions(), outcome.starts, outcome.measurements
    )


def _notes(kinds: tuple[Kind, ...], work: Path) -> list[str]:
    notes = []
    if any(kind.name.startswith("ray-llm") for kind in kinds):
        notes += [f"Ray Serve LLM: {note}" for note in ray_llm.shims(work / "shims").notes]
    if not can_raise():
        notes.append(
            "the client runs at normal priority (no CAP_SYS_NICE): its waits for a core look like latency"
        )
    return notes


def _run(options: Options, kinds: tuple[Kind, ...], setup: Setup) -> Outcome:
    levels = tuple(
        Level(concurrency, requests, options.warmup)
        for concurrency, requests in zip(options.concurrency, options.requests, strict=True)
    )
    load = Load(options.engine.served_model_name, options.max_tokens, levels, options.level_timeout_s)
    plan = Plan(kinds, load, options.rounds, options.exclusive, options.settle_s, options.start_timeout_s)
    with (options.out / "measurements.jsonl").open("w", encoding="utf-8") as lines:

        def record(result: Measured) -> None:
            print(json.dumps(asdict(result)), file=lines, flush=True)

        return Rounds(plan, setup, options.out / "logs", record, say).run()


def _settings(options: Options) -> Mapping[str, str]:
    engine: Engine = options.engine
    return {
        "model": str(engine.model),
        "engine": " ".join(engine.cli()[4:]),
        "KV cache": f"{engine.kv_cache_gib} GiB",
        "rounds": str(options.rounds),
        "servers up": "one at a time" if options.exclusive else "all together",
        "requests per worker": "/".join(map(str, options.requests)),
        "warm-up requests per worker": str(options.warmup),
        "tokens per reply": str(options.max_tokens),
        **{
            f"env {name or 'all'}": " ".join(f"{k}={v}" for k, v in e.items())
            for name, e in options.extra_env.items()
        },
    }


def main(argv: list[str]) -> int:
    """0 when all went well, 1 on any failed reply or server, 130 when interrupted."""
    options = parse(argv)
    end_on_signals()
    options.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="so-", dir="/tmp"))  # Short: see Setup.work.
    try:
        report = benchmark(options, work)
    except (LoadError, ServerError) as error:
        say(f"FAILED: {error}")
        say(f"server logs: {options.out / 'logs'}; Ray's own logs: {work}")
        return 1
    except KeyboardInterrupt:
        shutil.rmtree(work, ignore_errors=True)
        say("interrupted")
        return 130
    finally:
        stop_descendants(TERM_S)
    shutil.rmtree(work, ignore_errors=True)
    write(report, options.out)
    print(to_markdown(report))
    say(draw(report, options.out))
    say(f"results: {options.out / 'results.md'} and results.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
