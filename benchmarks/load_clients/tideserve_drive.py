"""Send the requests of a plan with Tideserve's own load client: `tideserve_drive.py PLAN`.

PLAN is what `clients.Tideserve` writes. Run as a script, so that it starts as the others do.
"""

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from loadtests.client.drive import drive
from loadtests.client.prompts import Prompts, Target
from loadtests.plan import Planned
from loadtests.record import Record
from loadtests.scenario import Client

_AHEAD_S = 1.0


class _Given(Prompts):
    """Bodies that are given instead of drawn."""

    def __init__(self, target: Target, bodies: list[dict[str, Any]]) -> None:
        super().__init__(target)
        self._bodies = bodies

    def parts(self, planned: Planned) -> Iterator[bytes]:
        yield json.dumps(self._bodies[planned.index]).encode()


def main(argv: list[str]) -> int:
    """Write a JSON line a request, and one for the timekeeping at the end."""
    plan = json.loads(Path(argv[0]).read_text())
    target = Target(plan["url"], {}, plan["model"], (0,), ("a",), 1.0, 0)
    planned = [
        Planned(
            order,
            one["at_s"],
            "default",
            None,
            "chat",
            8,
            one["max_tokens"],
            leave_after_s=plan["leave_after_s"],
        )
        for order, one in enumerate(plan["planned"])
    ]
    prompts = _Given(target, [one["body"] for one in plan["planned"]])
    with Path(plan["out"]).open("w") as out:

        def emit(record: Record) -> None:
            out.write(json.dumps(dataclasses.asdict(record)) + "\n")

        async def run() -> None:
            begin = time.monotonic() + _AHEAD_S
            settings = Client(timeout_s=600.0, retries=plan["retries"])
            kept = await drive(planned, target, settings, begin, emit, asyncio.Event(), prompts=prompts)
            print(json.dumps(dataclasses.asdict(kept)))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
