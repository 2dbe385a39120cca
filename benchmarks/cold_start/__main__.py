"""`python -m benchmarks.cold_start`: see README.md beside this file."""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.cold_start.measure import Measured, measure
from benchmarks.cold_start.options import Options, parse
from benchmarks.cold_start.picture import timeline
from benchmarks.cold_start.report import Report, to_markdown, write
from benchmarks.cold_start.systems import SYSTEMS, Start
from benchmarks.common.interruption import end_on_signals
from benchmarks.common.progress import say
from benchmarks.common.server_process import ServerError
from benchmarks.common.supervise import TERM_S
from loadtests.drawing.pictures import write_pictures
from loadtests.machine import machine, versions
from serve_app.cli.ray_processes import stop_descendants


def benchmark(options: Options, work: Path) -> Report:
    """Make every start, one after the other, and summarise."""
    facts = machine()
    starts = []
    with (options.out / "starts.jsonl").open("w", encoding="utf-8") as lines:
        for number, (system, replicas, at, traced) in enumerate(_plan(options), start=1):
            folder = work / str(number)
            folder.mkdir()
            log = options.out / "logs" / f"{number:02}-{system}"
            start = Start(
                SYSTEMS[system],
                options.engine,
                options.kv_cache_mib << 20,
                replicas,
                options.burst,
                folder,
                log,
            )
            starts.append(measure(start, at, traced, options.timeout_s))
            print(json.dumps(asdict(starts[-1])), file=lines, flush=True)
            say(_told(starts[-1]))
    return Report(options.systems, _settings(options), facts, versions(), starts)


def _plan(options: Options) -> Iterator[tuple[str, int, int, bool]]:
    """Yield system, replicas, round and whether it is traced: alternating, from another system each round."""
    rounds = [(at, True) for at in range(1, options.traced + 1)]
    rounds += [(at, False) for at in range(1, options.rounds + 1)]
    for replicas in options.replicas:
        for at, traced in rounds:
            first = (at - 1) % len(options.systems)
            for system in (*options.systems[first:], *options.systems[:first]):
                yield system, replicas, at, traced


def _told(one: Measured) -> str:
    return (
        f"{'traced' if one.traced else 'round'} {one.round}  {one.system:12} {one.replicas} at once: "
        f"first token {one.first_token_s:.2f} s, all {one.all_answered_s:.2f} s, "
        f"CPU {sum(one.cpu_s.values()):.1f} s, {sum(one.pss_bytes.values()) / 2**30:.2f} GiB, "
        f"others {one.other_cores:.2f} cores"
    )


def _settings(options: Options) -> dict[str, str]:
    return {
        "model": str(options.engine.model),
        "engine": " ".join(options.engine.cli()[4:]),
        "KV cache": f"{options.kv_cache_mib} MiB" if options.engine.device == "cpu" else "as vLLM finds it",
        "rounds": str(options.rounds),
        "traced starts": str(options.traced),
        "burst": f"{options.burst} requests to more than one replica",
    }


def main(argv: list[str]) -> int:
    """0 when all went well, 1 when a server did not start or answer, 130 when interrupted."""
    options = parse(argv)
    end_on_signals()
    options.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="cs-", dir="/tmp"))  # Short: Ray puts unix sockets below it.
    try:
        report = benchmark(options, work)
    except (ServerError, TimeoutError) as error:
        say(f"FAILED: {error or type(error).__name__}")
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
    if options.traced:
        drawn = {f"timeline-{count}": partial(timeline, report, count) for count in report.replicas()}
        write_pictures(options.out, drawn)
    say(f"results: {options.out}: results.md, results.json, timeline-*.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
