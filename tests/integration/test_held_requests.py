"""Hundreds of requests held at zero, on two CPUs that ingress and engines share: real engines, real Ray."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cluster import Running
from tests.integration.fleet import (
    ENGINES,
    INGRESS,
    MODEL,
    WAIT_S,
    changes,
    decisions,
    knobs_in_force,
    newest,
    with_knobs,
)
from tests.integration.fleet import until as until_blocking

HELD = 300
TWO_INGRESSES = {
    "min_replicas": 2,
    "max_replicas": 3,
    "target_ongoing_requests": 50,  # 300 held requests would be six replicas
    "downscale_delay_s": 1,
}
ONE_INGRESS = {**TWO_INGRESSES, "min_replicas": 1}


async def until(look: Callable[[], Any], holds: Callable[[Any], bool], what: str) -> None:
    await asyncio.to_thread(until_blocking, look, holds, what)


@pytest.fixture(scope="module")
async def sea(fleet: Running) -> Running:
    """The fleet at zero with two ingress replicas. No engine starts until a test says so."""
    fleet.deploy(with_knobs(fleet, TWO_INGRESSES, mode="advise", max_replicas=1))
    await until(lambda: len(fleet.processes(INGRESS)), lambda count: count == 2, "two ingress replicas")
    await until(lambda: fleet.processes(ENGINES), lambda left: left == [], "no engine")
    return fleet


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=WAIT_S, limits=limits) as made:
        yield made


def held_at(fleet: Running) -> tuple[float, float]:
    """Unix time of the newest decision, and the held requests that it went by."""
    record = decisions(fleet)[-1]
    return record["at"], record["signals"]["held_requests"]


def ingress_changes(fleet: Running) -> list[tuple[int, int]]:
    """Of the ingress's replicas, as the controller logged them."""
    lines = "".join(log.read_text(errors="replace") for log in fleet.folder.rglob("controller_*.log"))
    return [(int(old), int(new)) for old, new in re.findall(r"ingress replicas (\d+) -> (\d+)", lines)]


def count_holding(fleet: Running) -> int:
    """Return the number of ingress replicas that hold requests."""
    families = text_string_to_metric_families(httpx.get(f"{fleet.url}/metrics", timeout=10).text)
    samples = [one for family in families for one in family.samples if one.name == "llm_held_requests"]
    return len({one.labels["replica"] for one in samples if one.value > 0})


async def stream(client: httpx.AsyncClient, url: str, number: int) -> str:
    body = {"model": MODEL, "prompt": f"Wave {number}", "max_tokens": 4, "stream": True, "ignore_eos": True}
    reply = await client.post(f"{url}/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.text


@pytest.mark.long
async def test_held_requests_start_no_ingress_and_survive_its_drain(
    sea: Running, client: httpx.AsyncClient
) -> None:
    # A replica that has begun takes connections once HAProxy knows it.
    streams = []
    while await asyncio.to_thread(count_holding, sea) < 2:
        assert len(streams) < HELD
        streams.append(asyncio.create_task(stream(client, sea.url, len(streams))))
        await asyncio.sleep(0.5)
    streams += [asyncio.create_task(stream(client, sea.url, n)) for n in range(len(streams), HELD)]
    await until(lambda: held_at(sea)[1], lambda held: held == HELD, "300 held requests")
    assert ingress_changes(sea) == [(1, 2)]

    # One of the two drains, with what it holds; Ray tells the policy of the other alone.
    sea.deploy(with_knobs(sea, ONE_INGRESS, mode="advise", max_replicas=1))
    await until(lambda: ingress_changes(sea), lambda seen: seen == [(1, 2), (2, 1)], "one ingress fewer")
    stale = time.time() + 11  # a decision after this goes by no report that Ray had before the drain
    await until(lambda: held_at(sea), lambda seen: seen[0] > stale, "a decision without old reports")
    assert held_at(sea)[1] == HELD
    assert len(sea.processes(INGRESS)) == 2
    for task in streams:
        task.cancel()
    await asyncio.wait(streams)
    await until(lambda: len(sea.processes(INGRESS)), lambda count: count == 1, "the end of the drain")


async def test_hundreds_held_at_zero_are_all_answered(sea: Running, client: httpx.AsyncClient) -> None:
    """Leaves one engine replica."""
    # Ray hands changed knobs to no replica while one with those before drains.
    # A warm engine starts in 0.7 s: within an interval of a second no client might be told what it waits for.
    before = newest(sea)
    sea.deploy(with_knobs(sea, ONE_INGRESS, mode="act", max_replicas=1, keep_alive_interval_s=0.2))
    await until(lambda: knobs_in_force(sea), lambda now: now["keep_alive_interval_s"] == 0.2, "the knobs")
    texts = await asyncio.gather(*(stream(client, sea.url, number) for number in range(HELD)))

    whole = [text for text in texts if text.endswith("data: [DONE]\n\n") and "event: error" not in text]
    assert len(whole) == HELD
    assert any(text.startswith(": waiting for a replica of tide: phase=") for text in texts)
    await until(lambda: changes(sea, before), lambda steps: steps == [(0, 1)], "one step")
