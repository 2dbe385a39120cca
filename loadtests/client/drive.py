"""Sends planned requests from one event loop: at their times, or as fast as they are answered."""

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence

from loadtests.client.connection import allow_many_connections, open_session
from loadtests.client.conversation import converse, given
from loadtests.client.pacer import Pacer
from loadtests.client.prompts import Bodies, Prompts, Target, made
from loadtests.client.request import ClientState, SpoiledError
from loadtests.client.timekeeping import Clock, short_collections
from loadtests.planned import Planned
from loadtests.record import Record, Timekeeping
from loadtests.scenario import Client, Closed

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
    """Open loop: send each request at its time, whatever has become of the others.

    Args:
        planned: in any order; each is recorded once, if its time comes before `stop`. The later turns of a
            conversation come with its first.
        target: where to.
        settings: timeout and retries.
        begin: `time.monotonic` of the run's start. Bodies are made from the call on, so a plan that begins
            with many requests, or long ones, needs a start a second ahead.
        emit: takes each record as soon as its request is over.
        stop: once set, open requests are closed and recorded as abandoned, and no more are sent.
        prompts: writes the bodies; None: from `target`.
        until_s: seconds of the run; no later turn of a conversation begins then or after.

    Returns:
        How well it kept time, when the last request is over.

    Raises:
        SpoiledError: when all are over, if this machine lacked files, memory or ports for some of them.
    """
    ordered = sorted(planned, key=lambda one: one.at_s)
    writing = prompts or Prompts(target)
    bodies = Bodies(writing, ordered, begin)
    async with _state(target, settings, begin, emit, until_s) as (state, pacer):
        async with _beside(bodies.keep_ahead()), _beside(_interrupt(stop, state)):
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
    """Closed loop: `closed.streams` streams take requests from `planned` one after the other.

    A conversation is one of them, its pauses included. None is sent after `closed.for_s`, no later turn
    either; those under way then are finished. `at_s` of a plan is not looked at: that of a record is when it
    was sent, or when a later turn was to come. The rest is as for `drive`.
    """
    writing = prompts or Prompts(target)
    async with _state(target, settings, begin, emit, closed.for_s) as (state, pacer):

        async def stream() -> None:
            for one in planned:
                body = await made(writing, one)
                sent_s = time.monotonic() - begin
                if stop.is_set() or sent_s >= closed.for_s:
                    return
                await converse(state, pacer, writing, one, sent_s, functools.partial(given, body))
                if time.monotonic() - begin + closed.think_s >= closed.for_s:
                    return
                if closed.think_s:
                    await _pause(stop, closed.think_s)

        async with _beside(_interrupt(stop, state)), asyncio.TaskGroup() as streams:
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
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
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
