"""Drives requests at a server from a loop of its own, with bodies that script the stub server."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from loadtests.client.drive import drive
from loadtests.client.prompts import Prompts, Target
from loadtests.plan import Planned
from loadtests.record import Record, Timekeeping
from loadtests.scenario import Client

ALL = -1
"""The index that stands for those without a script of their own."""
WAIT_S = 60.0
"""For what must come, on a machine however busy."""


@dataclass(frozen=True, slots=True)
class Stub:
    """The stub server, and what it says it did."""

    port: int
    log: Path
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def served(self, prompt: str, count: int = 1) -> list[dict[str, Any]]:
        """Its records of a prompt, once there are so many; a cancelled one comes when it is noticed."""
        until = time.monotonic() + WAIT_S
        while True:
            found = self.all_served().get(prompt[:80], [])
            if len(found) >= count:
                return found
            assert time.monotonic() < until, f"{len(found)} of {count} records of {prompt[:80]}"
            time.sleep(0.02)

    def wait_for(self, count: int) -> None:
        """Until it has told of so many requests in all; of one whose client left, when it notices."""
        until = time.monotonic() + WAIT_S
        while len(self.log.read_text().splitlines()) < count:
            assert time.monotonic() < until, f"fewer than {count} requests are over"
            time.sleep(0.02)

    def all_served(self) -> dict[str, list[dict[str, Any]]]:
        """Its records so far, by the first 80 characters of the prompt."""
        found: dict[str, list[dict[str, Any]]] = {}
        for line in self.log.read_text().splitlines():
            row = json.loads(line)
            found.setdefault(row["prompt"], []).append(row)
        return found


def target(url: str, seed: int = 1) -> Target:
    return Target(
        url=url,
        headers={"Authorization": "Bearer key"},
        model="tide",
        token_ids=tuple(range(1000, 9000)),
        words=("tide", "moon", "sand", 'a "shell"', "Küste"),
        tokens_per_word=1.5,
        seed=seed,
    )


def planned(index: int, at_s: float = 0.0, **given: Any) -> Planned:
    values = {"kind": "default", "model": None, "api": "completions", "prompt_tokens": 24, "output_tokens": 4}
    return Planned(index=index, at_s=at_s, **(values | given))


def text_of(body: bytes) -> str:
    """What the stub records of a request's prompt."""
    document = json.loads(body)
    return document["messages"][-1]["content"] if "messages" in document else str(document["prompt"])


class Scripted(Prompts):
    """Bodies that tell the stub how to answer."""

    def __init__(self, target: Target, scripts: Mapping[int, Mapping[str, Any]]) -> None:
        super().__init__(target)
        self._scripts = scripts

    def parts(self, planned: Planned) -> Iterator[bytes]:
        body = b"".join(super().parts(planned))
        yield body[:-1] + b',"stub":%b}' % json.dumps(self._script(planned)).encode()

    def _script(self, planned: Planned) -> Mapping[str, Any]:
        return self._scripts.get(planned.index, self._scripts.get(ALL, {}))

    def text(self, planned: Planned) -> str:
        return text_of(b"".join(self.parts(planned)))


@dataclass(frozen=True, slots=True)
class Driven:
    records: dict[int, Record]
    timekeeping: Timekeeping
    begin: float


def driven(
    plan: Sequence[Planned],
    target: Target,
    settings: Client | None = None,
    *,
    prompts: Prompts | None = None,
    ahead_s: float = 0.2,
    beside: Callable[[asyncio.Event, list[Record]], Any] | None = None,
) -> Driven:
    """Drive a plan to its end; `beside(stop, records)` is a coroutine that runs meanwhile."""
    records: list[Record] = []

    async def run() -> tuple[Timekeeping, float]:
        stop = asyncio.Event()
        begin = time.monotonic() + ahead_s
        task = asyncio.create_task(beside(stop, records)) if beside else None
        kept = await drive(plan, target, settings or Client(), begin, records.append, stop, prompts=prompts)
        if task is not None:
            await task
        return kept, begin

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        kept, begin = runner.run(run())
    assert len({record.index for record in records}) == len(records)
    return Driven({record.index: record for record in records}, kept, begin)
