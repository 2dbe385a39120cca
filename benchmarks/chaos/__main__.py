"""`python -m benchmarks.chaos`: see README.md beside this file."""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from benchmarks.chaos import continuity, verdicts
from benchmarks.chaos.attack import Attack, Conductor, Timing
from benchmarks.chaos.greedy_chat import PATHS
from benchmarks.chaos.load import Job
from benchmarks.chaos.losses import LossesInARow
from benchmarks.chaos.observer import observing
from benchmarks.chaos.processes import Processes
from benchmarks.chaos.roles import ENGINE_CORE, ENGINE_REPLICA, ROLES, Signal
from benchmarks.chaos.server import MODEL, ChaosError, OwnServer
from benchmarks.chaos.trace import Trace
from benchmarks.common.interruption import end_on_signals
from benchmarks.common.progress import say
from loadtests.machine import machine, versions
from serve_app.cli.listening import free_port

_PAUSE_S = (5.0, 20.0)
"""Between two attacks at random."""
_ENGINES, _ENGINES_IN_A_ROW = 2, 3
_MOST_MINUTES = 1440.0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Exits with status 2 and a sentence for a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos",
        description="Kill and stop each process of an application under load, and count what clients see.",
    )
    names = [role.name for role in ROLES]
    add = parser.add_argument
    add("--only", metavar="ROLE,…", help=f"attack only these: {', '.join(names)}")
    add("--signal", choices=(*get_args(Signal), "both"), default="both",
        help="SIGKILL, SIGSTOP, or first one and then the other (default)")  # fmt: skip
    add("--minutes", type=float, help="attack at random for so long; with --losses the most it may take")
    add("--losses", type=int, help="lose engines so many times in a row, and compare every stream's text")
    add("--every", type=float, default=6.0, metavar="S",
        help="with --losses: mean seconds between two (default: 6)")  # fmt: skip
    add("--seed", type=int, default=0, help="of random draws (default: 0)")
    add("--streams", type=int, help="open at each attack (default: 16; with --losses 12)")
    add("--tokens", type=int, help="of each stream (default: 1000; with --losses 600)")
    add("--apis", default="chat", metavar="API,…", help=f"of the streams: {', '.join(PATHS)} (default: chat)")
    add("--out", type=Path, default=Path("benchmarks/results/chaos"), help="folder of the results")
    options = parser.parse_args(argv)
    in_a_row = options.losses is not None
    allowed = [ENGINE_REPLICA, ENGINE_CORE] if in_a_row else names
    options.roles = options.only.split(",") if options.only else allowed
    for name in options.roles:
        if name not in allowed:
            parser.error(f"--only = {name!r}: must be of {', '.join(allowed)}")
    options.apis = tuple(options.apis.split(","))
    for name in options.apis:
        if name not in PATHS:
            parser.error(f"--apis = {name!r}: must be of {', '.join(PATHS)}")
    options.signals = get_args(Signal) if options.signal == "both" else (options.signal,)
    options.streams = options.streams or (12 if in_a_row else 16)
    options.tokens = options.tokens or (600 if in_a_row else 1000)
    bounds = {
        "minutes": (1 / 60, _MOST_MINUTES), "losses": (1, 100_000), "every": (0.2, 600),
        "streams": (1, 1000), "tokens": (1, 1_000_000),
    }  # fmt: skip
    for name, (least, most) in bounds.items():
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            parser.error(f"--{name} = {value:g}: must be from {least:g} to {most:g}")
    return options


def main(argv: Sequence[str]) -> int:
    """0 when every goal holds, 3 when one is missed, 1 on failure, 2 for a wrong command line."""
    options = parse(argv)
    end_on_signals()  # The children of a killed process come to us, so that they can be ended.
    trace = Trace(facts={"machine": machine(), "versions": versions(), "command": list(argv)})
    failure = ""
    try:
        asyncio.run(_attack(options, trace))
    except KeyboardInterrupt:
        failure = "interrupted"
    except (ChaosError, TimeoutError) as error:
        failure = str(error)
    passed = False
    if trace.events:  # They are worth a table however the run ended.
        trace.interrupt()
        passed = _report(options, trace)
    if failure:
        print(f"python -m benchmarks.chaos: {failure}", file=sys.stderr)
        return 1
    return 0 if passed else 3


def _report(options: argparse.Namespace, trace: Trace) -> bool:
    """Print the tables and write them beside the whole trace; whether every goal holds."""
    in_a_row: bool = options.losses is not None
    text, passed = continuity.report(trace) if in_a_row else verdicts.report(trace)
    path = options.out / f"{'losses' if in_a_row else 'chaos'}.md"
    options.out.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
    path.with_suffix(".json").write_text(json.dumps(trace.document()), encoding="utf-8")
    print(f"\n{text}\n\nresult: {path}, and {path.with_suffix('.json').name} with everything seen")
    return passed


async def _attack(options: argparse.Namespace, trace: Trace) -> None:
    """Carry the attacks out. `trace` is up to date however the run ends."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))  # Short: Ray's sockets have long names.
    in_a_row = options.losses is not None
    processes = Processes(os.getpid())
    server = OwnServer(_ENGINES_IN_A_ROW if in_a_row else _ENGINES, free_port(), folder, processes)
    try:
        say("starting the server")
        await server.start()
        job = Job(server.url, MODEL, options.streams, options.tokens, options.apis)
        attacks = [Attack(role, one) for one in options.signals for role in options.roles]
        async with observing(processes, job, trace) as observer:
            chance = random.Random(options.seed)
            conductor = Conductor(server, observer, Timing(), chance)
            if in_a_row:
                most_s = 60 * (options.minutes or _MOST_MINUTES)
                losses = LossesInARow(conductor, server, observer, chance)
                await losses.run(attacks, options.losses, options.every, most_s)
            elif options.minutes is None:
                await conductor.attack_in_sequence(attacks)
            else:
                await conductor.attack_at_random(attacks, options.minutes, _PAUSE_S)
    except BaseException:
        say(f"the server's logs are in {folder}")
        raise
    else:
        if all(one.whole for one in trace.streams) or not in_a_row:
            await server.stop()
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"the server's logs are in {folder}")
    finally:
        await server.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
