"""Worlds of the ledger: replicas that are killed write their usage to a database that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from serve_app.ledger.store import Row, UsageStore
from serve_app.ledger.usage import AMOUNTS, Amounts
from serve_app.ledger.writer import WRITE_INTERVAL_S, UsageWriter
from tests.ledger.replica import FakeReplica
from tests.simulation.world import UNIX_S, Process, World, current, step


class _Ledger(UsageStore):
    """A ledger that may be locked, and whose commit may be unclear."""

    def add(self, writer: str, number: int, rows: Mapping[Row, Amounts]) -> None:
        step("base")
        super().add(writer, number, rows)
        step("commit")


class LedgerWorld(World):
    """One to three replicas, each started again when it was killed."""

    def __init__(self, seed: str) -> None:
        often = (0.0, 0.05, 0.4)
        super().__init__(seed, kill=(0.0, 0.0, 0.05), base=often, commit=often, clock=(0.0, 0.02))
        self.used: dict[str, Amounts] = {}
        """What each life of a replica has used, by a key of its own."""
        self.killed: set[str] = set()

    async def run(self) -> None:
        self.url = f"sqlite:///{self.folder}/usage.db"
        async with asyncio.TaskGroup() as group:
            for number in range(self.draw.randint(1, 3)):
                group.create_task(self._live(f"r{number}"))
        store = UsageStore(self.url)
        billed = store.used("key", 0, 2 * UNIX_S)
        store.close()
        for key, used in self.used.items():
            found = billed.get(key, Amounts())
            more = [getattr(found, name) - getattr(used, name) for name in AMOUNTS]
            if max(more) > 1e-6 or (key not in self.killed and min(more) < -1e-6):
                self.faults.append(f"{key} used {used}, and {found} was billed")

    async def _live(self, name: str) -> None:
        while self.loop.time() < self.calm_at:
            process = Process(self)
            current.set(process)
            key = f"{name}-{len(self.used)}"
            self.used[key] = Amounts()
            replica, store = FakeReplica(), _Ledger(self.url)
            replica.now = self.loop.time()
            replica.serve()
            writer = UsageWriter(replica.meter, store, 30.0, wall=self.wall)
            working = self.loop.create_task(self._work(replica, key))
            over = False
            while not process.died.is_set() and not (over and not writer.unwritten_s):
                over = working.done()
                await asyncio.sleep(WRITE_INTERVAL_S)
                if self.fails("clock"):
                    process.ahead_s = self.draw.choice((-90.0, 90.0))
                replica.now = self.loop.time()
                await asyncio.gather(asyncio.to_thread(writer.write), return_exceptions=True)
            working.cancel()
            if process.died.is_set():
                self.killed.add(key)
            self.loop.network.note(f"{key} {self.used[key]}")
            store.close()

    async def _work(self, replica: FakeReplica, key: str) -> None:
        draw, used = self.draw, self.used[key]
        while self.loop.time() < self.calm_at:
            await asyncio.sleep(draw.expovariate(2.0))
            began = replica.now = self.loop.time()
            call = replica.begin(key, draw.randint(1, 50))
            try:
                for number in range(draw.randint(1, 40)):
                    await asyncio.sleep(draw.expovariate(20.0))
                    replica.now = self.loop.time()
                    first = call if not number else None
                    replica.step(0.0, *[call] * bool(number), prefill=10 * (not number), first=first)
                    used.completion_tokens += 1
            finally:
                used.gpu_seconds += self.loop.time() - began
            replica.end(call)
            used.requests += 1
            used.prompt_tokens += call.sequences[0].prompt_len
