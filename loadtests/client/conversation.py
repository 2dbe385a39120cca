"""One conversation: its turns one after the other, each with all that was said before."""

import asyncio
import functools
from collections.abc import Awaitable, Callable

from loadtests.client.answer_text import answer_text
from loadtests.client.pacer import Pacer
from loadtests.client.prompts import Prompts, made
from loadtests.client.request import ClientState, RunningRequest
from loadtests.planned import Planned


async def converse(
    state: ClientState,
    pacer: Pacer,
    prompts: Prompts,
    first: Planned,
    at_s: float,
    take: Callable[[Planned], Awaitable[bytes]],
) -> None:
    """Send `first`, whose body `take` gives, and the turns after it; a request that stands alone has none.

    `at_s` is the intended time of the first, seconds of the run. Later ones have the times of their records
    (`next_turn.with_next_turn`), and their bodies are made while the reader thinks.
    """
    history = b""
    for turn in first.turns():
        request = RunningRequest(state, turn, at_s)
        record = await request.run(take)
        if turn.following is None or record.next_at_s is None:
            return
        at_s = record.next_at_s
        said = prompts.said(turn, await answer_text(request.kept))
        history = history + b"," + said if history else said
        body = await made(prompts, turn.following, history)
        take = functools.partial(given, body)
        if not await _reached(state, pacer, at_s):
            return


async def given(body: bytes, _: Planned) -> bytes:
    """A body that is there already, as `RunningRequest.run` takes it."""
    return body


async def _reached(state: ClientState, pacer: Pacer, at_s: float) -> bool:
    """Wait until `at_s`; False if the run is stopped before."""
    if state.stopped:  # While the last answer was being read: what is to be cancelled has been.
        return False
    waiting = asyncio.create_task(pacer.until(state.begin + at_s))
    state.starting.add(waiting)
    try:
        await asyncio.wait((waiting,))
        return not state.stopped
    finally:
        state.starting.discard(waiting)
        waiting.cancel()
