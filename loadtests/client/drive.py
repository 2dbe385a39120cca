"""Sends planned requests from one event loop: at their times, or as fast as they are answered."""

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence

from loadtests.client.connection import allow_many_connections, open_session
from loadtests.client.pacer import Clock, Pacer, short_collections
from loadtests.client.prompts import Bodies, Prompts, Target, make_body
from loadtests.client.request import ClientState, RunningRequest, SpoiledError
from loadtests.client.sse import answer_text
from loadtests.plan import Planned
from loadtests.record import Record, Timekeeping
from loadtests.scenario import Client, Closed


async def converse(
    state: ClientState,
    pacer: Pacer,
    prompts: Prompts,
    first: Planned,
    at_s: float,
    take: Callable[[Planned], Awaitable[bytes]],
) -> None:
    """Send `first`, whose body `take` gives, and the turns after it; a request that stands alone has none.

    `at_s` is the intended time of the first, in seconds of the run. The times of later turns come from their
    records (`with_next_turn`), and their bodies are made while the reader thinks.
    """
    history = b""
    for turn in first.turns():
        request = RunningRequest(state, turn, at_s)
        record = await request.run(take)
        if turn.following is None or record.next_at_s is None:
            return
        at_s = record.next_at_s
        said = prompts.turn_json(turn, await answer_text(request.kept))
        history = history + b"," + said if history else said
        body = await make_body(prompts, turn.following, history)
        take = functools.partial(use_body, body)
        if not await _reached(state, pacer, at_s):
            return


async def use_body(body: bytes, _: Planned) -> bytes:
    """A body that exists already, as `RunningRequest.run` takes it."""
    return body


async def _reached(state: ClientState, pacer: Pacer, at_s: float) -> bool:
    """Wait until `at_s`; False if the run is stopped before."""
    if state.stopped:  # While the last answer was being read: all tasks have been cancelled.
        return False
    waiting = asyncio.create_task(pacer.until(state.begin + at_s))
    state.starting.add(waiting)
    try:
        await asyncio.wait((waiting,))
        return not state.stopped
    finally:
        state.starting.discard(waiting)
        waiting.cancel()


INTERRUPTED = "the run was interrupted"


async def drive(
    planned: Sequence[Planned],
    target: Target,
    settings: Client,
    begin: float,
    emit: Callable[[Record], None],
    stop: asyncio.Event,
    *,
    prompts: Prompts | None = None,
    until_s: float = math.inf,
) -> Timekeeping:
    """Open loop: send each request at its time, whether the others have ended or not.

    Args:
        planned: In any order; each is recorded once, if its time comes before `stop`. The first turn of a
            conversation carries the later ones.
        target: The server.
        settings: Timeout and retries.
        begin: `time.monotonic` of the run's start. Bodies are made from the call on, so a plan that begins
            with many requests, or long ones, needs a start a second ahead.
        emit: Takes each record as soon as its request is over.
        stop: Once set, open requests are closed and recorded as abandoned, and no more are sent.
        prompts: Writes the bodies; None: from `target`.
        until_s: No later turn of a conversation begins at this second of the run or after it.

    Raises:
        SpoiledError: when all are over, if this machine lacked files, memory or ports for some of them.
    """
    ordered = sorted(planned, key=lambda one: one.at_s)
    writing = prompts or Prompts(target)
    bodies = Bodies(writing, ordered, begin)
    async with _state(target, settings, begin, emit, until_s) as (state, pacer):
        async with beside(bodies.keep_ahead()), beside(_interrupt(stop, state)):
            async with asyncio.TaskGroup() as requests:

                async def start() -> None:
                    for one in ordered:
                        await pacer.until(begin + one.at_s)
                        requests.create_task(converse(state, pacer, writing, one, one.at_s, bodies.take))

                if not stop.is_set():
                    state.starting.add(requests.create_task(start()))
        return state.clock.result()


async def drive_closed(
    closed: Closed,
    planned: Iterator[Planned],
    target: Target,
    settings: Client,
    begin: float,
    emit: Callable[[Record], None],
    stop: asyncio.Event,
    *,
    prompts: Prompts | None = None,
) -> Timekeeping:
    """Closed loop: each of `closed.streams` streams takes one request after another from `planned`.

    A conversation counts as one request, its pauses included. No request and no later turn is sent after
    `closed.for_s`; open ones are finished. The `at_s` of a plan is ignored: in a record it is when a request
    was sent, or when a later turn was due. The rest is as for `drive`.
    """
    writing = prompts or Prompts(target)
    async with _state(target, settings, begin, emit, closed.for_s) as (state, pacer):

        async def stream() -> None:
            for one in planned:
                body = await make_body(writing, one)
                sent_s = time.monotonic() - begin
                if stop.is_set() or sent_s >= closed.for_s:
                    return
                await converse(state, pacer, writing, one, sent_s, functools.partial(use_body, body))
                if time.monotonic() - begin + closed.think_s >= closed.for_s:
                    return
                if closed.think_s:
                    await _pause(stop, closed.think_s)

        async with beside(_interrupt(stop, state)), asyncio.TaskGroup() as streams:
            waiting = asyncio.create_task(pacer.until(begin))
            state.starting.add(waiting)
            await asyncio.wait((waiting,))
            for _ in range(closed.streams):
                streams.create_task(stream())
        return state.clock.result()


@contextlib.asynccontextmanager
async def _state(
    target: Target, settings: Client, begin: float, emit: Callable[[Record], None], until_s: float
) -> AsyncIterator[tuple[ClientState, Pacer]]:
    allow_many_connections()
    with short_collections(), Pacer(asyncio.get_running_loop()) as pacer:
        async with open_session(target) as session:
            state = ClientState(session, target, settings, begin, emit, Clock(pacer, begin), until_s=until_s)
            yield state, pacer
    if state.spoiled:
        raise SpoiledError(f"this machine could not open every connection: {state.spoiled}")


@contextlib.asynccontextmanager
async def beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run `work` until the block ends; its error is raised then."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        # `await task` cannot tell the task's cancellation from one of the caller, which would be swallowed.
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()


async def _interrupt(stop: asyncio.Event, state: ClientState) -> None:
    await stop.wait()
    state.stopped = True
    for task in state.starting:
        task.cancel()
    for request in tuple(state.open):
        request.end("abandoned", INTERRUPTED)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
