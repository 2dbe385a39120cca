"""The load: a number of streams open at once, in a process of its own that its parent directs.

`python -m benchmarks.chaos.load` reads orders from its standard input, one a line, and writes a JSON
document a line to its standard output: `{"streaming": 16}` when the number of streams that receive tokens
has changed, and `{"stream": {...}}` when one is over. It ends with its input, so with its parent.

It is a process of its own because reading thousands of pieces a second would delay the probes beside it.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Protocol

import aiohttp

from benchmarks.chaos.observed import Outcome, Stream
from loadtests.client.sse import Scanner

PAUSE_S = 1.0
"""A stream that stood still for longer was interrupted, as its reader sees it."""
HUNG_S = 5.0
"""And one that has stood still for so long when it is given up hangs."""


@dataclass(frozen=True, slots=True)
class Received:
    """What a client has of one stream when it is over."""

    opened_s: float
    ended_s: float
    asked_tokens: int
    status: int = 0
    """0: no answer had begun."""
    pieces_s: Sequence[float] = ()
    """When each piece arrived."""
    done: bool = False
    """`[DONE]` came last."""
    error_event: str = ""
    output_tokens: int | None = None
    """As the final usage says."""
    failure: str = ""
    """What went wrong with the connection, in words."""
    given_up: bool = False
    """Closed by us, because the event was over."""


def stream(received: Received) -> Stream:
    """The record of one stream."""
    outcome, error = _outcome(received)
    return Stream(
        received.opened_s,
        received.ended_s,
        outcome,
        tokens=received.output_tokens or len(received.pieces_s),
        longest_pause_s=_longest_pause_s(received),
        error=error,
    )


def _outcome(received: Received) -> tuple[Outcome, str]:
    if received.given_up:
        last = received.pieces_s[-1] if received.pieces_s else received.opened_s
        idle_s = received.ended_s - last
        return ("hung", f"nothing for {idle_s:.1f} s") if idle_s > HUNG_S else ("open", "")
    if received.status != 200:
        return "refused", received.failure
    if received.error_event:
        return ("told" if received.done else "cut"), received.error_event
    if not received.done:
        return "cut", received.failure or "the stream ended without [DONE]"
    if received.output_tokens != received.asked_tokens:
        return "cut", f"[DONE] after {received.output_tokens} of {received.asked_tokens} tokens"
    return ("continued" if _longest_pause_s(received) > PAUSE_S else "whole"), ""


def _longest_pause_s(received: Received) -> float:
    if not received.pieces_s:
        return 0.0
    times = [*received.pieces_s, received.ended_s]
    return max(after - before for before, after in pairwise(times))


OPEN, CLOSE, DROP = "open", "close", "drop"
"""Open streams and replace those that end; open no more; close those that are left."""

_AGAIN_S = 0.5
"""A client that was refused asks again after this long."""
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Job:
    """What is sent, and how many at once."""

    url: str
    headers: Mapping[str, str]
    model: str
    streams: int
    tokens: int


class Asked(Protocol):
    """A request for a stream, and what has come of it."""

    path: str
    body: dict[str, Any]

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes of the answer, which came at `now`."""

    @property
    def pieces(self) -> Sequence[float]:
        """When each piece arrived."""

    @property
    def error(self) -> str:
        """The error event, in words; empty without one."""

    @property
    def output_tokens(self) -> int | None:
        """As the final usage says."""

    def record(self, received: Received) -> tuple[Outcome, dict[str, Any]]:
        """How it ended, and what the parent is told."""


class Story:
    """A completion whose pieces are counted, and not kept."""

    path = "/v1/completions"

    def __init__(self, job: Job) -> None:
        self.body: dict[str, Any] = {
            "model": job.model,
            "prompt": "Once upon a time",
            "max_tokens": job.tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._scanner = Scanner("completions")
        self.feed = self._scanner.feed

    @property
    def pieces(self) -> Sequence[float]:
        """When each piece arrived."""
        return self._scanner.pieces

    @property
    def error(self) -> str:
        """The error event, in words; empty without one."""
        return self._scanner.error

    @property
    def output_tokens(self) -> int | None:
        """As the final usage says."""
        return self._scanner.usage().output_tokens

    def record(self, received: Received) -> tuple[Outcome, dict[str, Any]]:
        """How it ended, and what the parent is told."""
        ended = stream(received)
        return ended.outcome, {"stream": asdict(ended)}


class Load:
    """The streams of one process."""

    def __init__(self, job: Job, session: aiohttp.ClientSession) -> None:
        self._job, self._session = job, session
        self._wanted = asyncio.Event()
        self._streaming = 0
        self._open: set[asyncio.Task[Outcome]] = set()
        self._given_up: set[asyncio.Task[Any]] = set()

    def order(self, order: str) -> None:
        """Do as the parent says."""
        if order == OPEN:
            self._wanted.set()
            return
        self._wanted.clear()
        if order == DROP:
            self._given_up |= self._open
            for task in self._open:
                task.cancel()

    async def worker(self) -> None:
        """One stream after the other."""
        while True:
            await self._wanted.wait()
            task = asyncio.create_task(self._one())
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            outcome = await task
            if outcome == "refused":
                await asyncio.sleep(_AGAIN_S)

    async def _one(self) -> Outcome:
        asked, task = self._next(), asyncio.current_task()
        assert task is not None
        opened_s, status, failure, tail = time.monotonic(), 0, "", b""
        counted = False
        try:
            async with self._session.post(self._job.url + asked.path, json=asked.body) as response:
                status = response.status
                if status != 200:
                    failure = f"HTTP {status}: {(await response.text())[:_SHOWN]}"
                else:
                    async for data in response.content.iter_any():
                        asked.feed(data, time.monotonic())
                        tail = (tail + data)[-64:]
                        if asked.pieces and not counted:
                            counted = True
                            self._count(1)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            failure = f"{type(error).__name__}: {error}"[:_SHOWN]
        except asyncio.CancelledError:
            if task not in self._given_up:
                raise
            task.uncancel()
        finally:
            if counted:
                self._count(-1)
        outcome, told = asked.record(
            Received(
                opened_s,
                time.monotonic(),
                self._job.tokens,
                status=status,
                pieces_s=asked.pieces,
                done=tail.rstrip().endswith(b"data: [DONE]"),
                error_event=asked.error,
                output_tokens=asked.output_tokens,
                failure=failure,
                given_up=task in self._given_up,
            )
        )
        _tell(told)
        return outcome

    def _next(self) -> "Asked":
        return Story(self._job)

    def _count(self, more: int) -> None:
        self._streaming += more
        _tell({"streaming": self._streaming})


def _tell(document: Mapping[str, Any]) -> None:
    print(json.dumps(document), flush=True)


async def run(job: Job, kind: type[Load] = Load) -> None:
    """Follow orders until the parent closes our input."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=60)
    # A connection for each stream: none is failed by what happened to the one before it.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=job.headers) as session:
        load = kind(job, session)
        workers = [asyncio.create_task(load.worker()) for _ in range(job.streams)]
        while line := await reader.readline():
            load.order(line.decode().strip())
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A Ctrl-C reaches us too; our input's end ends us.
    asyncio.run(run(Job(**json.loads(sys.argv[1]))))
