"""`python -m benchmarks.chaos`: see README.md beside this file."""

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.chaos import continuity, losses, losses_results
from benchmarks.chaos.attack import Conductor, Server
from benchmarks.chaos.continuity import judge
from benchmarks.chaos.greedy import Heard
from benchmarks.chaos.load import Job
from benchmarks.chaos.memory import Growth, memory_table
from benchmarks.chaos.observed import Trace
from benchmarks.chaos.observer import observing
from benchmarks.chaos.options import Options, parse
from benchmarks.chaos.processes import Processes
from benchmarks.chaos.results import document, goals, notes, read_results, table
from benchmarks.chaos.servers import ChaosError, Given, OneNode, read, with_engines
from benchmarks.chaos.three_nodes import WORKERS, Front, ThreeNodes
from benchmarks.chaos.verdicts import Row
from benchmarks.common.progress import say
from loadtests.machine import machine, versions
from serve_app.cli.http_client import authorization
from serve_app.cli.listening import free_port
from serve_app.cli.ray_processes import adopt_orphans
from serve_app.settings.settings_error import SettingsError

_PAUSE_S = (5.0, 20.0)
"""Between two attacks at random."""


def main(argv: Sequence[str]) -> int:
    """0 when every goal holds, 3 when one is missed, 1 on failure, 2 for a wrong command line."""
    options = parse(argv)
    try:
        if options.show and all(path.name == losses_results.FILE for path in options.show):
            return max(_print_losses(losses_results.read_rows(path)) for path in options.show)
        if options.show:
            return _print(*_shown(options.show))
        headers = authorization()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if options.losses is not None:
            return _lose_in_a_row(options, headers, list(argv))
        trace, facts = Trace(), {"machine": machine(), "versions": versions(), "command": list(argv)}
        failure = ""
        try:
            asyncio.run(_attack(options, headers, trace))
        except KeyboardInterrupt:
            failure = "interrupted"
        except (ChaosError, TimeoutError) as error:  # What was seen until then is worth its table.
            failure = str(error)
        trace.interrupt()
        if not trace.ends_s:
            raise ChaosError(failure or "nothing was attacked")
        found = document(trace, facts)
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / "chaos.json"
        path.write_text(json.dumps(found), encoding="utf-8")
        status = _print(*_shown([path]))
        print(f"result: {path}")
        if failure:
            raise ChaosError(failure)
        return status
    except (ChaosError, SettingsError, ValueError) as error:
        print(f"python -m benchmarks.chaos: {error}", file=sys.stderr)
        return 1


def _lose_in_a_row(options: Options, headers: dict[str, str], command: list[str]) -> int:
    about = {"machine": machine(), "versions": versions(), "command": command}
    trace, heard, failure = Trace(), list[Heard](), ""
    try:
        asyncio.run(_attack(options, headers, trace, heard))
    except KeyboardInterrupt:
        failure = "interrupted"
    except (ChaosError, TimeoutError) as error:
        failure = str(error)
    if not trace.events:
        raise ChaosError(failure or "nothing was lost")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / losses_results.FILE
    path.write_text(json.dumps(losses_results.document(trace.events, heard, about)), encoding="utf-8")
    for note in losses_results.notes(trace.events, heard):
        print(f"- {note}")
    status = _print_losses(judge(trace.events, heard))
    print(f"result: {path}")
    if failure:
        raise ChaosError(failure)
    return status


def _print_losses(rows: Sequence[continuity.Row]) -> int:
    print(f"\n{continuity.table(rows)}\n\n{continuity.goals_table(rows)}\n")
    return 0 if all(continuity.goals(rows).values()) else 3


def _shown(paths: Sequence[Path]) -> tuple[list[Row], list[Growth]]:
    results = [read_results(path) for path in paths]
    return [row for rows, _ in results for row in rows], results[-1][1]


def _print(rows: Sequence[Row], memory: Sequence[Growth]) -> int:
    print(f"\n{table(rows)}\n")
    for note in notes(rows):
        print(f"- {note}")
    print(f"\n{goals(rows)}\n\n{memory_table(memory)}\n")
    missed = any(row.missed for row in rows) or any(one.flat is False for one in memory)
    return 3 if missed else 0


async def _attack(
    options: Options, headers: dict[str, str], trace: Trace, heard: list[Heard] | None = None
) -> None:
    """What is done and seen is in `trace`, and what greedy streams said in `heard`, at any end."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))  # Short: Ray's sockets have long names.
    server, url, model, processes, nodes = _server(options, folder)
    try:
        say("starting the server")
        await server.start()
        job = Job(url, headers, model, options.streams, options.tokens)
        load = "benchmarks.chaos.load" if heard is None else "benchmarks.chaos.greedy_load"
        async with observing(processes, job, trace, load, heard) as observer:
            chance = random.Random(options.seed)
            conductor = Conductor(server, observer, options.timing, chance, say)
            attacks = options.attacks(nodes)
            if options.losses is not None:
                drawn = losses.attacks(options.roles, options.signals, WORKERS)
                plan = losses.Plan(options.losses, options.every, 60 * (options.minutes or 1440))
                await losses.LossesInARow(conductor, server, observer, chance, say).run(drawn, plan)
            elif options.minutes is None:
                await conductor.sequence(attacks)
            else:
                await conductor.at_random(attacks, options.minutes, _PAUSE_S)
    except BaseException:
        say(f"the server's logs are in {folder}")
        raise
    else:
        await server.stop()
        if all(one.whole for one in heard or ()):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"the server's logs are in {folder}")
    finally:
        await server.stop()


def _server(options: Options, folder: Path) -> tuple[Any, str, str, Processes, tuple[str, ...]]:
    if options.url:
        processes = Processes(options.pids)
        given = Given(options.url, options.model, processes)
        return given, options.url, given.model, processes, ()
    adopt_orphans()  # What a killed process leaves behind comes to us, so that it can be ended.
    served, port = read(options.config), free_port()
    if options.engines is not None:
        served = with_engines(served, options.engines)
    processes = Processes([os.getpid()])
    if options.nodes == 1:
        server: Server = OneNode(served, port, folder, processes)
        return server, f"http://127.0.0.1:{port}", served.model, processes, ()
    front: Front = "workers" if options.losses is None else "head"
    three = ThreeNodes(served, port, folder, processes, front)
    return three, f"http://127.0.0.1:{port}", served.model, processes, three.names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
