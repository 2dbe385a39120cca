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

from benchmarks.chaos.attack import Conductor, Server
from benchmarks.chaos.load import Job
from benchmarks.chaos.memory import Growth, memory_table
from benchmarks.chaos.observed import Trace
from benchmarks.chaos.observer import observing
from benchmarks.chaos.options import Options, parse
from benchmarks.chaos.processes import Processes
from benchmarks.chaos.results import document, goals, notes, read_results, table
from benchmarks.chaos.servers import ChaosError, Given, OneNode, read
from benchmarks.chaos.three_nodes import ThreeNodes
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
        if options.show:
            return _print(*_shown(options.show))
        headers = authorization()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
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


async def _attack(options: Options, headers: dict[str, str], trace: Trace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))  # Short: Ray's sockets have long names.
    server, url, model, processes, nodes = _server(options, folder)
    try:
        say("starting the server")
        await server.start()
        job = Job(url, headers, model, options.streams, options.tokens)
        async with observing(processes, job, trace) as observer:
            conductor = Conductor(server, observer, options.timing, random.Random(options.seed), say)
            attacks = options.attacks(nodes)
            if options.minutes is None:
                await conductor.sequence(attacks)
            else:
                await conductor.at_random(attacks, options.minutes, _PAUSE_S)
    except BaseException:
        say(f"the server's logs are in {folder}")
        raise
    else:
        await server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        await server.stop()


def _server(options: Options, folder: Path) -> tuple[Any, str, str, Processes, tuple[str, ...]]:
    if options.url:
        processes = Processes(options.pids)
        given = Given(options.url, options.model, processes)
        return given, options.url, given.model, processes, ()
    adopt_orphans()  # What a killed process leaves behind comes to us, so that it can be ended.
    served, port = read(options.config), free_port()
    processes = Processes([os.getpid()])
    if options.nodes == 1:
        server: Server = OneNode(served, port, folder, processes)
        return server, f"http://127.0.0.1:{port}", served.model, processes, ()
    three = ThreeNodes(served, port, folder, processes)
    return three, f"http://127.0.0.1:{port}", served.model, processes, three.names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
