import asyncio
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest

from serve_app.engine.grammar import nursery_client as client_module
from serve_app.engine.grammar.nursery import Work
from serve_app.engine.grammar.nursery_client import NurseryClient, NurseryEndedError
from tests.uninterruptible import needs_freezer, uninterruptible


def work(payload: bytes) -> bytes:
    while payload == b"endless":
        pass
    if payload == b"deadly":
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    return payload


def prepare() -> Work:
    return work


@pytest.fixture
async def client() -> AsyncIterator[NurseryClient]:
    made = NurseryClient(prepare, cpu_s=60, memory_bytes=64 << 20)
    made.start()
    yield made
    made.stop()


async def jobs(client: NurseryClient, count: int) -> None:
    """Wait until so many jobs run in the nursery that lives."""
    while True:
        try:
            if len(psutil.Process(client.pid).children()) == count:
                return
        except psutil.NoSuchProcess:
            pass
        await asyncio.sleep(0.01)


async def test_a_job_of_a_killed_nursery_runs_again_in_the_next_one(client: NurseryClient) -> None:
    endless = asyncio.create_task(client.run(b"endless"))
    await jobs(client, 1)
    first = client.pid

    os.kill(first, signal.SIGKILL)

    assert (await client.run(b"sea")).result == b"sea"
    await jobs(client, 1)
    assert client.pid != first
    assert not endless.done()
    endless.cancel()
    await jobs(client, 0)


async def test_a_job_that_ends_its_nursery_is_not_run_for_ever(client: NurseryClient) -> None:
    with pytest.raises(NurseryEndedError):
        await client.run(b"deadly")

    assert (await client.run(b"sea")).result == b"sea"


async def test_a_stopped_nursery_is_replaced(client: NurseryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.run(b"ebb")
    first = client.pid
    os.kill(first, signal.SIGSTOP)
    within = client_module._within
    monkeypatch.setattr(
        client_module, "_within", lambda seconds, it: within(0.1 if client.pid == first else seconds, it)
    )

    assert (await client.run(b"flow")).result == b"flow"
    assert client.pid != first


async def test_a_job_that_the_machine_has_no_time_for_ends(
    client: NurseryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_MOST_WALL", 0)

    with pytest.raises(TimeoutError):
        await client.run(b"endless")

    await jobs(client, 0)


@needs_freezer
async def test_a_process_that_does_not_end_holds_up_nothing(client: NurseryClient) -> None:
    assert (await client.run(b"ebb")).result == b"ebb"
    first = client.pid
    with uninterruptible(first):
        client.stop()
        assert psutil.pid_exists(first)
