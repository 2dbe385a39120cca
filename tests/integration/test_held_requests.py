"""Hundreds of requests held at zero, on two CPUs that ingress and engines share: real engines, real Ray."""

import asyncio
import copy
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cluster import Running, application, command_line, engine_settings

MODEL = "tide"
HELD = 300
INGRESS = "ray::ServeReplica:tideserve:Ingress"
WAIT_S = 120.0
KNOBS = {
    "mode": "advise",  # nothing starts until the test says so
    "min_replicas": 0,
    "max_replicas": 1,
    "ttft_target_s": 5.0,
    "itl_target_s": 1.0,
    "keep_alive_interval_s": 1,
}
INGRESS_KNOBS = {
    "min_replicas": 2,
    "max_replicas": 3,
    "target_ongoing_requests": 50,  # 300 held requests would be six replicas
    "downscale_delay_s": 1,
}


@pytest.fixture(scope="module")
def sea() -> Iterator[Running]:
    document = application(
        engine_settings(MODEL, cpus_per_replica=0.5),
        knobs={MODEL: KNOBS},
        ingress_knobs=INGRESS_KNOBS,
        ingress={"cpus_per_replica": 0.5},
    )
    running = Running(document, environment={"RAY_OVERRIDE_RESOURCES": '{"CPU": 2}'})
    with running.serving():
        yield running


def turned(document: dict[str, Any], model: dict[str, Any], ingress: dict[str, Any]) -> dict[str, Any]:
    edited = copy.deepcopy(document)
    user_config = edited["applications"][0]["deployments"][0]["user_config"]
    user_config["autoscaling"][MODEL].update(model)
    user_config["ingress"].update(ingress)
    return edited


def held_at(sea: Running) -> tuple[float, float]:
    """Unix time of the newest decision, and the held requests that it went by."""
    records = httpx.get(f"{sea.url}/autoscaling/decisions", params={"limit": 1}, timeout=10).json()[
        "decisions"
    ]
    return (records[-1]["at"], records[-1]["signals"]["held_requests"]) if records else (0.0, 0.0)


def ingress_changes(sea: Running) -> list[tuple[int, int]]:
    """Of the ingress's replicas, as the controller logged them."""
    lines = "".join(log.read_text(errors="replace") for log in sea.folder.rglob("controller_*.log"))
    return [(int(old), int(new)) for old, new in re.findall(r"ingress replicas (\d+) -> (\d+)", lines)]


async def until(look: Callable[[], Any], holds: Callable[[Any], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds(seen := await asyncio.to_thread(look)):
        assert time.monotonic() < deadline, f"{what} did not come to pass within {WAIT_S} s: {seen}"
        await asyncio.sleep(0.2)


def holding(sea: Running) -> int:
    """Ingress replicas that hold requests."""
    families = text_string_to_metric_families(httpx.get(f"{sea.url}/metrics", timeout=10).text)
    samples = [one for family in families for one in family.samples if one.name == "llm_held_requests"]
    return len({one.labels["replica"] for one in samples if one.value > 0})


async def stream(client: httpx.AsyncClient, url: str, number: int) -> str:
    body = {"model": MODEL, "prompt": f"Wave {number}", "max_tokens": 4, "stream": True, "ignore_eos": True}
    reply = await client.post(f"{url}/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.text


def mode_of(sea: Running) -> str:
    """As the policy has it; the text of the answer if it was another."""
    reply = httpx.get(f"{sea.url}/autoscaling/decisions", timeout=10)
    if reply.status_code != 200:
        return reply.text
    mode: str = reply.json()["autoscaler"]["models"]["Engine-tide"]["mode"]
    return mode


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        timeout=WAIT_S, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
    )


async def test_requests_held_at_zero_start_no_ingress_replica_and_are_seen_while_one_drains(
    sea: Running,
) -> None:
    await until(lambda: len(sea.processes(INGRESS)), lambda count: count == 2, "the two ingress replicas")
    async with client() as asking:
        # A replica that has begun takes connections once HAProxy knows it.
        streams = []
        while await asyncio.to_thread(holding, sea) < 2:
            assert len(streams) < HELD
            streams.append(asyncio.create_task(stream(asking, sea.url, len(streams))))
            await asyncio.sleep(0.5)
        streams += [asyncio.create_task(stream(asking, sea.url, n)) for n in range(len(streams), HELD)]
        await until(lambda: held_at(sea)[1], lambda held: held == HELD, "300 held requests")
        assert ingress_changes(sea) == [(1, 2)]

        # One of the two drains, with what it holds; Ray tells the policy of the other alone.
        sea.deploy(turned(sea.document, {}, {"min_replicas": 1}))
        await until(lambda: ingress_changes(sea), lambda seen: seen == [(1, 2), (2, 1)], "one ingress fewer")
        stale = time.time() + 11  # a decision after this goes by no report that Ray had before the drain
        await until(lambda: held_at(sea), lambda seen: seen[0] > stale, "a decision without old reports")
        assert held_at(sea)[1] == HELD
        assert len(sea.processes(INGRESS)) == 2
        for task in streams:
            task.cancel()
        await asyncio.wait(streams)
    await until(lambda: len(sea.processes(INGRESS)), lambda count: count == 1, "the end of the drain")


async def test_hundreds_held_at_zero_on_two_cpus_are_all_answered(sea: Running) -> None:
    # Ray hands changed knobs to no replica while one with those before drains.
    # A warm engine starts in 0.7 s: within an interval of a second no client might be told what it waits for.
    sea.deploy(turned(sea.document, {"mode": "act", "keep_alive_interval_s": 0.2}, {"min_replicas": 1}))
    await until(lambda: mode_of(sea), lambda mode: mode == "act", "the mode of the file")
    async with client() as asking:
        texts = await asyncio.gather(*(stream(asking, sea.url, number) for number in range(HELD)))

    whole = [text for text in texts if text.endswith("data: [DONE]\n\n") and "event: error" not in text]
    assert len(whole) == HELD
    assert any(text.startswith(": waiting for a replica of tide: phase=") for text in texts)


def test_without_the_gcs_it_ends_at_once_and_says_where_the_log_is(sea: Running) -> None:
    """Ends the application."""
    started = sea.descendants()
    [gcs] = [process for process in started if command_line(process).split(" ")[0].endswith("gcs_server")]

    gcs.kill()

    assert sea.process is not None
    assert sea.process.wait(20) == 1  # 5 s on a machine without other tests
    [log] = re.findall(r"Ray's GCS \(process \d+\) ended; its log: (\S+)", sea.log)
    assert Path(log).is_file()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
