"""The load: a number of streams open at once, in a process of its own that its parent directs.

`python -m benchmarks.chaos.load` reads orders from its standard input, one a line. It writes JSON documents,
one a line: `{"streaming": 16}` when the number of streams that receive tokens has changed, and
`{"stream": {...}}` when a stream is over. It ends with its input, so with its parent.

It is a process of its own because reading thousands of pieces a second would delay the probes beside it.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

import aiohttp

from benchmarks.chaos.greedy_chat import PATHS, SUBJECTS, GreedyChat, request_body
from benchmarks.chaos.trace import Outcome

OPEN, CLOSE, DROP = "open", "close", "drop"
"""Open streams and replace those that end; open no more; close the streams that are left."""
_RETRY_S = 0.5
"""A client that was refused asks again after this time."""
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Job:
    """The server to ask, and the streams."""

    url: str
    model: str
    streams: int
    tokens: int
    apis: tuple[str, ...] = ("chat",)
    """Names in `greedy_chat.PATHS`. Each gets the same share of the streams."""


class Load:
    """The streams of one process."""

    def __init__(self, job: Job, session: aiohttp.ClientSession) -> None:
        self._job, self._session = job, session
        self._next = cycle(zip(SUBJECTS, cycle(job.apis)))
        self._wanted = asyncio.Event()
        self._streaming = 0
        self._open: dict[asyncio.Task[Outcome], GreedyChat] = {}

    def follow(self, order: str) -> None:
        """Do as the parent says."""
        if order == OPEN:
            self._wanted.set()
            return
        self._wanted.clear()
        if order == DROP:
            for task, chat in self._open.items():
                chat.given_up = True
                task.cancel()

    async def work(self) -> None:
        """Read one stream after the other."""
        while True:
            await self._wanted.wait()
            subject, api = next(self._next)
            chat = GreedyChat(subject, self._job.tokens, time.monotonic(), api)
            task = asyncio.create_task(self._read(chat, subject, api))
            self._open[task] = chat
            task.add_done_callback(self._open.pop)
            if await task == "refused":
                await asyncio.sleep(_RETRY_S)

    async def _read(self, chat: GreedyChat, subject: str, api: str) -> Outcome:
        body = request_body(self._job.model, subject, self._job.tokens, api)
        counted = 0
        try:
            async with self._session.post(f"{self._job.url}{PATHS[api]}", json=body) as response:
                chat.status = response.status
                if response.status != 200:
                    chat.failure = f"HTTP {response.status}: {(await response.text())[:_SHOWN]}"
                else:
                    async for data in response.content.iter_any():
                        chat.feed(data, time.monotonic())
                        if chat.pieces_s and not counted:
                            counted = 1
                            self._count(counted)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            chat.failure = f"{type(error).__name__}: {error}"[:_SHOWN]
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not chat.given_up:
                raise
            task.uncancel()
        finally:
            self._count(-counted)
        stream = chat.end(time.monotonic())
        _write({"stream": asdict(stream)})
        return stream.outcome

    def _count(self, more: int) -> None:
        if more:
            self._streaming += more
            _write({"streaming": self._streaming})


def _write(document: Mapping[str, Any]) -> None:
    print(json.dumps(document), flush=True)


async def run(job: Job) -> None:
    """Follow orders until the parent closes our input."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=60)
    # A connection for each stream: the fate of one stream does not fail the next.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        load = Load(job, session)
        workers = [asyncio.create_task(load.work()) for _ in range(job.streams)]
        while line := await reader.readline():
            load.follow(line.decode().strip())
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A Ctrl-C reaches us too; the end of our input ends us.
    asyncio.run(run(Job(**json.loads(sys.argv[1]))))
