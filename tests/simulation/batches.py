"""Worlds of batches: clients of the API, one to three runners, a database and a file store that fail."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from httpx import ASGITransport, AsyncClient, Response
from sqlalchemy import Connection, func, select

from serve_app.api.batch_access import BatchAccess
from serve_app.api.http_api import create_app
from serve_app.batch.file_store import FileStore
from serve_app.batch.input_file import validate
from serve_app.batch.queue import BatchQueue
from serve_app.batch.records import DAY_S, OPEN, Batch
from serve_app.batch.store import BatchStore
from serve_app.batch.tables import BATCHES, FILES, LINES
from serve_app.ingress.batch_calls import BatchCalls
from serve_app.runner.open_batch import backoff_s
from serve_app.runner.runner import Runner
from serve_app.settings.tree import HttpSettings
from serve_app.wire.batches import BatchLine, LineAnswer, LineAnswers
from serve_app.wire.own_clock import SteadyTime
from tests.api.server import StubObserver
from tests.simulation.world import CALM_S, UNIX_S, Process, World, current, fail, step

_HOUR_S = 30
"""An hour of a completion window takes so long."""
_SLACK_S = 150.0
"""A batch ends so long after its window and the last fault: leases, backoffs, and clocks that were set."""
_LATE_S = 8.0
"""The longest time from when a line may be sent to its call, or from a window's end to that of the calls."""
_CHAT = "/v1/chat/completions"
_GIVES_UP_S = (33.0, 42.0)
"""When a runner gives up an input file that it cannot read, after the upload."""
_BUSY = (500, 503, 507)
"""The statuses after which a client tries again."""


class _Queue(BatchQueue):
    """A queue whose process may stand still with a row that others change."""

    def end(self, *args: Any) -> Any:
        step("end")
        return super().end(*args)


class _Base(BatchStore):
    """A database that may be locked, and whose commit may be unclear."""

    @contextmanager
    def begin(self, *, alone: bool = False) -> Iterator[Connection]:
        step("base")
        with super().begin(alone=alone) as connection:
            yield connection
        step("commit")


class _Objects:
    """obstore over a folder that fails, that is full, or that is not mounted."""

    def __init__(self, world: BatchWorld) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            step("objects")
            writes, world = name in ("put", "open_writer"), self._world
            if writes and world.away("full"):
                fail(OSError(28, "No space left on device"))
            if world.away("unmounted"):
                if name == "list":
                    return []
                fail(PermissionError(name) if writes else FileNotFoundError(name))
            if "get" in name and world.away(args[1]):
                fail(FileNotFoundError(args[1]))
            return getattr(obstore, name)(*args, **more)

        return call

    async def put_async(self, store: Any, name: str, chunks: Any, **_: Any) -> None:
        self.put(store, name, b"".join([chunk async for chunk in chunks]))
        if self._world.fails("unreadable"):
            self._world.take_away(name, self._world.unread_s)
            self._world.unreadable.add(name.removeprefix("files/"))

    async def get_range_async(self, store: Any, name: str, **part: int) -> Any:
        return self.get_range(store, name, **part)


@dataclass
class _Line:
    """What has happened to a line of a batch."""

    asked: int = 0
    ended: float = 0.0
    """When the last call that had it ended."""
    statuses: list[int] = field(default_factory=list)
    """Those of the answers that a runner has got."""

    @property
    def final(self) -> bool:
        """Whether it has its final answer. The third fault of the server is one."""
        return not {200, 400}.isdisjoint(self.statuses) or self.statuses.count(500) > 2


class BatchWorld(World):
    """Clients, runners and stores."""

    def __init__(self, seed: str) -> None:
        often = (0.0, 0.0, 0.01, 0.1)
        rates = {"kill": (0.0, 0.002, 0.01), "base": often, "commit": often, "objects": often}
        rates |= {"slow": (0.0, 0.0, 0.05), "slow end": (0.0,), "unreadable": (0.0, 0.0, 0.3)}
        super().__init__(seed, answer=(0.0, 0.05, 0.5), **rates)
        draw = self.draw
        kinds = ("unmounted", "full", "base", "clock", "damage")
        self.events = sorted(
            (draw.uniform(0.0, CALM_S / 2), draw.choice(kinds)) for _ in range(draw.choice((0, 1, 3)))
        )
        self.runners, self.clients = draw.choice((1, 1, 2, 3)), draw.randint(1, 3)
        self.wanted, self.answer_s = draw.choice((1, 8, 64)), draw.choice((0.01, 0.3, 3.0))
        self.unread_s: tuple[float, ...] = (5.0, 25.0, 45.0)
        self.windows: tuple[str, ...] = ("1h", "2h")
        self.theme = draw.choice(("", "", "steady", "check"))
        """In a `steady` world, only answers fail. In a `check`, files and another runner come as a runner
        gives up the files."""
        if self.theme == "steady":
            self.events, self.rates = [], {"answer": self.rates["answer"]}
        elif self.theme == "check":
            self.rates |= {"kill": 0.002, "slow end": 1.0, "unreadable": 1.0}
            self.runners, self.windows, self.calm_at = 2, ("2h",), self.calm_at + CALM_S
            self.unread_s = tuple(draw.uniform(*_GIVES_UP_S) for _ in range(3))
        happens = {kind for _, kind in self.events} | {kind for kind, rate in self.rates.items() if rate}
        self.late_s = _LATE_S + 30.0 * len(happens & {"base", "clock", "slow"})
        self.lines: defaultdict[tuple[str, int], _Line] = defaultdict(_Line)
        self.flying: set[tuple[int, str, int]] = set()
        """By runner, batch and number."""
        self.damaged: dict[str, set[str]] = {}
        """By batch: the lines whose answers were in damaged objects."""
        self.unreadable: set[str] = set()
        """Input files that could not be read for a while."""
        self.excused = 0
        """The calls of the API that failed, and whose undoing failed too: each may leave a file."""
        self._over = asyncio.Event()

    def __str__(self) -> str:
        return f"{self.theme} {self.runners} runners, {self.clients} clients, {self.rates} {self.events}"

    def store(self) -> BatchStore:
        return _Base(f"sqlite:///{self.folder}/batch.db")

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        super().patch(patch)
        ids, in_order = Random(f"ids {self.seed}"), SimpleNamespace(map=map)
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128)))
        patch.setattr(secrets, "token_hex", lambda size: ids.randbytes(size).hex())
        patch.setattr("serve_app.batch.file_store.obstore", _Objects(self))
        patch.setattr("serve_app.batch.queue.ThreadPoolExecutor", lambda _: nullcontext(in_order))
        patch.setattr("serve_app.api.batch_access.ThreadPoolExecutor", lambda *_: self.loop)
        patch.setattr("serve_app.api.batches._HOUR_S", _HOUR_S)
        steady = partial(SteadyTime, self.wall, self.loop.time)
        patch.setattr("serve_app.runner.runner.SteadyTime", steady)

    async def run(self) -> None:
        self.files = FileStore(f"file://{self.folder}/files")
        self._store = self.store()
        always = [self._watch(), *map(self._run_runner, range(self.runners))]
        tasks = [self.loop.create_task(each) for each in always]
        async with asyncio.TaskGroup() as group:
            api = Process(self, mortal=False)
            access = BatchAccess(self.store(), self.files, self.wall)
            app = create_app([], StubObserver(), HttpSettings(), batches=access)
            for number in range(self.clients):
                group.create_task(self._client(number, api, app))
            group.create_task(self._cause_faults())
        await asyncio.sleep(max(0.0, self.calm_at - self.loop.time()))
        await self._await_ends()
        await asyncio.sleep(60.0)
        self.faults += [f"in flight: {each}" for each in self.flying]
        self._over.set()
        await asyncio.gather(*tasks)
        await asyncio.sleep(1.0)
        self._check()
        self._store.close()

    async def _await_ends(self) -> None:
        while opened := [batch for batch in self._batches() if batch.status in OPEN]:
            last = max(batch.expires_at - UNIX_S for batch in opened)
            if self.loop.time() > max(last, self.calm_at) + _SLACK_S:
                self.faults += [f"batch {_name(batch)} is still {batch.status}" for batch in opened]
                return
            await asyncio.sleep(1.0)

    # Runners

    async def _run_runner(self, number: int) -> None:
        await asyncio.sleep(number * self.draw.uniform(*_GIVES_UP_S) * (self.theme == "check"))
        while not self._over.is_set():
            process = Process(self)
            current.set(process)
            store = self.store()
            queue = _Queue(store, self.files, self.loop.time)
            ask, end = partial(self._ask, number), partial(self._note_end, number, store)

            def check(batch: Batch, store: BatchStore = store, end: Any = end) -> None:
                if not validate(store, self.files, batch, 1 << 20, self.wall()):
                    end(batch.id)

            work = [Runner(queue, check, ask, end).run(), asyncio.to_thread(queue.discard_leftovers)]
            ends = [process.died.wait(), self._over.wait()]
            tasks = [self.loop.create_task(each) for each in (*work, *ends)]
            await asyncio.wait(tasks[2:], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            store.close()
            await asyncio.sleep(0.0 if self._over.is_set() else self.draw.choice((0.1, 3.0)))

    def _note_end(self, runner: int, store: BatchStore, batch_id: str) -> None:
        batch = store.batch(batch_id)
        assert batch is not None
        self.loop.network.note(f"{_name(batch)} {batch.status}")
        if any(each[:2] == (runner, batch_id) for each in self.flying):
            self.faults.append(f"{_name(batch)} has ended with lines in flight")

    async def _ask(
        self, runner: int, batch: Batch, lines: Sequence[BatchLine]
    ) -> AsyncGenerator[LineAnswers]:
        """Send lines to an ingress replica, as a runner does by Ray."""
        found = SimpleNamespace(find=lambda _: SimpleNamespace(name="tide"))
        models: Any = [SimpleNamespace(name="tide", deployment_name="Engine-tide")]
        knobs: Any = SimpleNamespace(of=lambda _: SimpleNamespace(batch_concurrency=self.wanted))
        ingress: Any = SimpleNamespace(answer=partial(self._answer, runner))
        calls = BatchCalls(found, ingress, models, knobs)  # type: ignore[arg-type]
        answers = calls.answer(batch.owner, batch.id, batch.endpoint, batch.model or "", lines)
        asked = {line.number: self.lines[batch.id, line.number] for line in lines}
        try:
            async with aclosing(answers):
                async for part in answers:
                    if self.fails("answer"):
                        raise self.draw.choice((ConnectionError("gone"), asyncio.CancelledError()))
                    for answer in part.answers:
                        asked[answer.number].statuses.append(answer.status)
                    yield part
        finally:
            for each in asked.values():
                each.asked, each.ended = each.asked + 1, self.loop.time()

    async def _answer(self, runner: int, owner: str, batch_id: str, url: str, line: BatchLine) -> LineAnswer:
        mine = runner, batch_id, line.number
        if self.theme == "steady" and any(each[1:] == mine[1:] for each in self.flying):
            self.faults.append(f"line {line.number} is in flight twice")
        self.flying.add(mine)
        try:
            await asyncio.sleep(self.draw.expovariate(1 / self.answer_s))
            status = 200
            if self.fails("answer"):
                status = self.draw.choice((0, 400, 429, 500, 503))
            if not status:
                await asyncio.Event().wait()  # it hangs
            name = json.loads(line.body)["messages"][0]["content"]
            return LineAnswer(line.number, f"req-{name}", status, json.dumps({"to": name}).encode())
        finally:
            self.flying.discard(mine)

    # Clients

    async def _client(self, number: int, api: Process, app: Any) -> None:
        draw = Random(f"client {number} {self.draw.random()}")
        await asyncio.sleep(draw.uniform(0.0, 8.0))
        count, bad = draw.choice((1, 5, 30)), draw.random() < 0.1
        ids = [f"c{number}-{each}" for each in range(count)]
        bodies = [{"model": "tide", "messages": [{"role": "user", "content": each}]} for each in ids]
        line = {"method": "POST", "url": _CHAT}
        texts = [json.dumps(line | {"custom_id": ids[n], "body": body}) for n, body in enumerate(bodies)]
        content = "\n".join([*texts, *["no JSON"] * bad]).encode()
        async with AsyncClient(transport=ASGITransport(app), base_url="http://tide") as http:

            async def ask(method: str, path: str, **what: Any) -> Response | None:
                for _ in range(30):
                    current.set(process := copy(api))
                    reply = None
                    with suppress(TimeoutError):  # a client that leaves
                        patience_s = draw.choice((0.02, 60.0)) if draw.random() < 0.3 else 60.0
                        async with asyncio.timeout(patience_s) as patience:
                            reply = await http.request(method, path, **what)
                    self.excused += process.failures > (method == "POST" and not patience.expired())
                    if reply is not None and reply.status_code not in _BUSY:
                        return reply
                    await asyncio.sleep(1.0)
                return None

            form = {"files": {"file": content}, "data": {"purpose": "batch"}}
            if (uploaded := await ask("POST", "/v1/files", **form)) is None or uploaded.status_code != 200:
                self.loop.network.note(f"c{number} has no file")
                return
            file_id = uploaded.json()["id"]
            asked = {"input_file_id": file_id, "endpoint": _CHAT, "metadata": {"name": f"c{number} {count}"}}
            asked["completion_window"] = draw.choice(self.windows)
            made = await ask("POST", "/v1/batches", json=asked)
            if made is not None and made.status_code == 200 and draw.random() < 0.4:
                await asyncio.sleep(draw.expovariate(0.3))
                await ask("POST", f"/v1/batches/{made.json()['id']}/cancel", json={})
            if draw.random() < 0.3:
                await asyncio.sleep(draw.expovariate(0.1))
                await ask("DELETE", f"/v1/files/{file_id}")

    # Faults

    async def _cause_faults(self) -> None:
        began = self.loop.time()
        for at_s, kind in self.events:
            await asyncio.sleep(max(0.0, began + at_s - self.loop.time()))
            self.loop.network.note(kind)
            if kind == "clock":
                for process in self.draw.sample(self.processes, 1):
                    process.ahead_s = self.draw.choice((-30.0, 30.0, 9000.0))
            elif kind == "damage":
                self._damage()
            else:
                self.take_away(kind)
        await asyncio.sleep(max(0.0, began + CALM_S - self.loop.time()))
        for process in self.processes:
            process.ahead_s = 0.0

    def _damage(self) -> None:
        """Damage an object that an open batch needs."""
        inputs = {batch.input_file_id: batch.id for batch in self._batches() if batch.status in OPEN}
        paths = [
            (path, inputs.get(path.name, path.parent.name))
            for path in sorted(self.folder.glob("files/*/**/*"))
            if path.name in inputs or path.parent.name in inputs.values()
        ]
        for path, batch_id in self.draw.sample(paths, min(1, len(paths))):
            content = path.read_bytes()
            lines = self.damaged.setdefault(batch_id, set())
            if path.name not in inputs:
                lines |= set(re.findall(r'"custom_id": ?"(.*?)"', content.decode()))
            path.unlink()
            if self.draw.random() < 0.5:
                path.write_bytes(content[: len(content) // 2])

    # What must hold

    async def _watch(self) -> None:
        """Find calls after the end of a window, and lines that nobody sends."""
        while not self._over.is_set():
            for batch in self._batches():
                late_s = self.loop.time() + UNIX_S - batch.expires_at
                runs = self.theme == "steady" and batch.status == "in_progress" and late_s < 0
                for fault, holds in (
                    ("late", late_s > self.late_s and any(each[1] == batch.id for each in self.flying)),
                    ("idle", runs and not self.flying and self._idle_s(batch) > _LATE_S),
                ):
                    text = f"{_name(batch)} has {fault} lines"
                    self.faults += [text] * (holds and text not in self.faults)
            await asyncio.sleep(1.0)

    def _lines(self, batch: Batch) -> list[_Line]:
        return [self.lines[batch.id, number + 1] for number in range(batch.total)]

    def _idle_s(self, batch: Batch) -> float:
        """Return for how long nothing was sent though a line could have been; negative if none could."""
        due = [line.ended + backoff_s(line.asked) for line in self._lines(batch) if not line.final]
        last = max((each.ended for each in self.lines.values()), default=0.0)
        began = max(last, (batch.in_progress_at or 0) - UNIX_S)
        return self.loop.time() - max(began, min(due, default=float("inf")))

    def _batches(self) -> list[Batch]:
        columns = [BATCHES.c[name] for name in Batch.__dataclass_fields__]
        with BatchStore.begin(self._store) as connection:
            return [Batch(*row) for row in connection.execute(select(*columns))]

    def _check(self) -> None:
        for batch in self._batches():
            if batch.status not in OPEN and (fault := self._fault_of(batch)):
                self.faults.append(f"batch {_name(batch)} {batch.status}: {fault}")
        with self._store.begin() as connection:
            uploads = FILES.select().where(~FILES.c.stored, FILES.c.purpose == "batch")
            left = connection.execute(uploads).all()
        if len(left) > self.excused:
            self.faults.append(f"{len(left)} uploads are left of {self.excused} that could not be undone")
        clock = [0.0]
        queue = BatchQueue(self._store, self.files, lambda: clock[0])
        queue.discard_leftovers()
        for clock[0] in (0.0, 4000.0):  # what a killed process left is deleted after a day
            queue.delete_old(self.wall() + 2 * DAY_S + clock[0])
        with self._store.begin() as connection:
            lines = connection.execute(select(func.count()).select_from(LINES)).scalar_one()
            sizes = {row.id: row.bytes for row in connection.execute(select(FILES).where(FILES.c.stored))}
            hidden = connection.execute(select(FILES.c.id).where(~FILES.c.stored)).scalars().all()
        paths = [path for path in self.folder.glob("files/*/**/*") if path.is_file() and "#" not in path.name]
        objects = {path.name: path.stat().st_size for path in paths}
        damaged = {batch.input_file_id for batch in self._batches() if batch.id in self.damaged}
        self.faults += [f"{lines} lines are left"] * bool(lines)
        self.faults += [f"the row of a hidden file is left: {name}" for name in hidden]
        self.faults += [
            f"file {name}: {sizes.get(name)} bytes by its row, {objects.get(name)} in the store"
            for name in sizes.keys() | objects.keys()
            if name not in damaged and sizes.get(name) != objects.get(name)
        ]

    def _fault_of(self, batch: Batch) -> str:
        if not batch.total:
            well = batch.status == "cancelled" or (batch.status == "failed" and batch.errors)
            return "" if well and not batch.output_file_id else "it has no lines, and no reason for that"
        output, errors = self._results(batch.output_file_id), self._results(batch.error_file_id)
        name, count = _name(batch).split(" ")
        ids = Counter(line["custom_id"] for line in (*output, *errors))
        if ids != Counter(f"{name}-{each}" for each in range(int(count))):
            return f"the results are of {sorted(ids.items())}"
        codes = Counter((line["error"] or {"code": ""})["code"] for line in errors)
        if any(line["response"]["body"]["to"] != line["custom_id"] for line in output):
            return "an answer is that of another line"
        if (batch.completed, batch.failed) != (len(output), codes[""] + codes["answer_lost"]):
            return f"it counts {batch.completed} and {batch.failed}, not {len(output)} and {codes}"
        early = batch.status == "expired" and (batch.expired_at or 0) < batch.expires_at
        if early and "clock" not in {kind for _, kind in self.events}:
            return "it has expired before the end of its window"
        unread = batch.input_file_id in self.unreadable and batch.in_progress_at is None
        if batch.status == "failed" and not (unread or batch.id in self.damaged):
            return f"it has failed: {batch.errors}"
        lost = {line["custom_id"] for line in errors if (line["error"] or {}).get("code") == "answer_lost"}
        if more := lost - self.damaged.get(batch.id, set()):
            return f"the answers of {sorted(more)} are lost, and were in no damaged object"
        wrong = Counter(line["response"]["status_code"] for line in errors if line["response"])
        final = Counter(500 if 400 not in each.statuses else 400 for each in self._lines(batch) if each.final)
        if any(count > final[status] for status, count in wrong.items()):
            return f"the statuses {wrong} are not final: {final} are"
        none = sum(count for code, count in codes.items() if code.startswith("batch_"))
        lasts = self.runners == 1 and not self.rates.get("kill") and batch.id not in self.damaged
        if lasts and none > sum(not each.final for each in self._lines(batch)):
            return f"{none} lines have no answer, although a runner got answers to some of them"
        allowed = {"completed": "", "expired": "batch_expired", "cancelled": "batch_cancelled"}
        unanswered = codes.keys() - {"", "answer_lost"}
        return "" if unanswered <= {allowed.get(batch.status, "batch_failed")} else f"its errors are {codes}"

    def _results(self, file_id: str | None) -> list[dict[str, Any]]:
        path = self.folder / "files" / "files" / str(file_id)
        return list(map(json.loads, path.read_bytes().splitlines())) if file_id and path.exists() else []


def _name(batch: Batch) -> str:
    return (batch.metadata or {})["name"]
