"""Background requests at zero and beside others: real engines, real Ray."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.integration.cluster import Running
from tests.integration.fleet import (
    WAIT_S,
    changes,
    chat,
    decisions,
    is_whole,
    knobs_in_force,
    newest,
    until,
    until_ready,
    with_knobs,
)

FLOOD = 24
QUIET = {"downscale_delay_s": 1, "downscale_to_zero_delay_s": 1, "background_keep_s": 1, "mode": "act"}
UNTAUGHT = {"forecast": False}
"""The forecast knows the bursts of other tests of this fleet, and would allow for them from the start."""


@pytest.fixture(scope="module", autouse=True)
def _app_starts_meanwhile(request: pytest.FixtureRequest) -> None:
    """From here on, the tests of `fleet` mostly wait. The start of `app` takes 50 s."""
    if any("app" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("starting_app")


async def stream(client: httpx.AsyncClient, fleet: Running, words: str, lane: str) -> str:
    reply = await client.post(
        f"{fleet.url}/v1/chat/completions", json=chat(words, 32), headers={"X-Tideserve-Lane": lane}
    )
    assert reply.status_code == 200, reply.text
    return reply.text


def held(fleet: Running) -> float:
    return float(decisions(fleet)[-1]["signals"]["background_held_requests"])


def told(fleet: Running, after: int) -> str:
    return " ".join(term["why"] for record in decisions(fleet, after) for term in record["terms"])


async def test_flood_wakes_no_model_and_adds_no_replica(fleet: Running) -> None:
    """It waits at zero, and is answered by the one replica that another request starts."""

    async def wait(*arguments: Any) -> None:
        await asyncio.to_thread(until, *arguments)

    fleet.deploy(with_knobs(fleet, max_replicas=3, **QUIET, **UNTAUGHT))
    await wait(lambda: knobs_in_force(fleet)["background_keep_s"], lambda now: now == 1, "the knobs")
    await asyncio.to_thread(until_ready, fleet, 0)
    before = newest(fleet)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=WAIT_S, limits=limits) as client:
        flood = [
            asyncio.create_task(stream(client, fleet, f"Wave {number}", "background"))
            for number in range(FLOOD)
        ]
        await wait(lambda: held(fleet), lambda now: now == FLOOD, "a queue of background requests")
        # A target that stays gets a record each second.
        full = newest(fleet)
        await wait(lambda: newest(fleet), lambda now: now > full, "another decision about the queue")
        assert changes(fleet, before) == []
        assert "are waiting until another request starts a replica" in told(fleet, before)

        # The other requests keep the replica until the flood is done.
        while not all(task.done() for task in flood):
            assert is_whole(await stream(client, fleet, "Now", "interactive"))
        texts = await asyncio.gather(*flood)

    assert all(map(is_whole, texts))
    assert changes(fleet, before) == [(0, 1)]
    await asyncio.to_thread(until_ready, fleet, 0)
