import asyncio
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from serve_app.engine.grammar import sandbox as sandbox_module
from serve_app.engine.grammar.sandbox import JobEnd, Sandbox, SandboxEndedError, Work, fork_sandbox
from tests.uninterruptible import needs_freezer, uninterruptible


def spin(_: bytes) -> bytes:
    while True:
        pass


def crash(_: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def fault(_: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGSEGV)
    signal.pause()
    return b""


def kill_sandbox(_: bytes) -> bytes:
    sandbox = os.getppid()
    os.kill(sandbox, signal.SIGKILL)
    while os.getppid() == sandbox:  # a living sandbox would report the end of its job
        pass
    return crash(b"")


WORK: dict[bytes, Callable[[bytes], bytes]] = {
    b"long": lambda _: b"a" * 100_000,
    b"spin": spin,
    b"crash": crash,
    b"fault": fault,
    b"grow": lambda _: bytes(512 << 20)[:1],
    b"kill sandbox": kill_sandbox,
}


def prepare() -> Work:
    signal.signal(signal.SIGSEGV, lambda *_: None)  # as a library's handler that hangs
    return lambda payload: WORK.get(payload, lambda payload: payload)(payload)


def running(process: psutil.Process) -> bool:
    """Whether it runs. One that has ended may wait to be reaped by the first process of a container."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def no_process(*_: object) -> None:
    raise OSError("out of processes")


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    made = Sandbox(prepare, cpu_s=60, memory_bytes=64 << 20)
    made.start()
    yield made
    made.stop()


async def jobs(sandbox: Sandbox, count: int) -> list[psutil.Process]:
    """The processes of the jobs in the running sandbox, as soon as there are so many."""
    while True:
        try:
            found = [child for child in psutil.Process(sandbox.pid).children() if running(child)]
            if len(found) == count:
                return found
        except psutil.NoSuchProcess:
            pass
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("payload", "end"),
    [
        (b"echo", JobEnd(b"echo")),
        (b"", JobEnd(b"")),
        (b"e" * 3_000_000, JobEnd(b"e" * 3_000_000)),
        (b"long", JobEnd(b"a" * 100_000)),
        (b"spin", JobEnd(ended_by=signal.SIGPROF)),
        (b"crash", JobEnd(ended_by=signal.SIGKILL)),
        (b"fault", JobEnd(ended_by=signal.SIGSEGV)),
        (b"grow", JobEnd(ended_by=signal.SIGABRT)),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_a_job_ends_with_its_result_or_at_its_bound(payload: bytes, end: JobEnd) -> None:
    sandbox = Sandbox(prepare, cpu_s=0.2, memory_bytes=64 << 20, most_wall=1000)

    assert await sandbox.run(payload) == end
    sandbox.stop()


async def test_a_cancelled_job_ends_and_others_go_on(sandbox: Sandbox) -> None:
    spinning = [asyncio.create_task(sandbox.run(b"spin")) for _ in range(2)]
    await jobs(sandbox, 2)
    assert await sandbox.run(b"sea") == JobEnd(b"sea")

    spinning[0].cancel()

    await jobs(sandbox, 1)
    assert not spinning[1].done()
    spinning[1].cancel()
    await jobs(sandbox, 0)


async def test_a_sandbox_starts_from_any_thread() -> None:
    sandbox = Sandbox(prepare, cpu_s=60, memory_bytes=64 << 20)
    started, held = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (sandbox.start(), started.set(), held.wait()))
    thread.start()
    started.wait()

    assert await sandbox.run(b"sea") == JobEnd(b"sea")

    sandbox.stop()
    held.set()
    thread.join()


async def test_nothing_outlives_the_replica(tmp_path: Path) -> None:
    replica = os.fork()
    if not replica:
        pids = tmp_path / "pids"

        async def start_and_die() -> None:
            sandbox = Sandbox(prepare, cpu_s=60, memory_bytes=64 << 20)
            spinning = asyncio.create_task(sandbox.run(b"spin"))
            await asyncio.sleep(0)
            (job,) = await jobs(sandbox, 1)
            pids.write_text(f"{sandbox.pid} {job.pid}")
            os.kill(os.getpid(), signal.SIGKILL)
            await spinning

        threading.Thread(target=lambda: asyncio.run(start_and_die())).start()
        signal.pause()
    await asyncio.to_thread(os.waitpid, replica, 0)

    for pid in (tmp_path / "pids").read_text().split():
        while psutil.pid_exists(int(pid)) and running(psutil.Process(int(pid))):
            await asyncio.sleep(0.01)


async def test_a_killed_sandbox_is_replaced_and_its_job_goes_on(sandbox: Sandbox) -> None:
    spinning = asyncio.create_task(sandbox.run(b"spin"))
    (job,) = await jobs(sandbox, 1)
    first = sandbox.pid

    os.kill(first, signal.SIGKILL)

    assert await sandbox.run(b"sea") == JobEnd(b"sea")
    assert sandbox.pid != first
    assert running(job)
    spinning.cancel()
    while running(job):
        await asyncio.sleep(0.01)


async def test_a_job_that_ends_its_sandbox_runs_no_third_time(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[int] = []

    def fork_and_count(*arguments: Any) -> tuple[int, socket.socket]:
        made = fork_sandbox(*arguments)
        forked.append(made[0])
        return made

    monkeypatch.setattr(sandbox_module, "fork_sandbox", fork_and_count)

    with pytest.raises(SandboxEndedError):
        await sandbox.run(b"kill sandbox")

    assert forked == [sandbox.pid]  # beside the first one, which ran before
    assert await sandbox.run(b"sea") == JobEnd(b"sea")


async def test_a_stopped_sandbox_is_replaced() -> None:
    sandbox = Sandbox(prepare, cpu_s=60, memory_bytes=64 << 20, accept_s=3.0)
    await sandbox.run(b"ebb")
    first = sandbox.pid
    os.kill(first, signal.SIGSTOP)

    assert await sandbox.run(b"flow") == JobEnd(b"flow")
    assert sandbox.pid != first
    sandbox.stop()


async def test_job_ends_on_a_machine_too_busy() -> None:
    sandbox = Sandbox(prepare, cpu_s=60, memory_bytes=64 << 20, most_wall=0)

    with pytest.raises(TimeoutError):
        await sandbox.run(b"spin")

    await jobs(sandbox, 0)
    sandbox.stop()


async def test_failed_fork_is_logged_and_next_job_starts_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox(prepare, cpu_s=60, memory_bytes=64 << 20)
    with monkeypatch.context() as patched:
        patched.setattr(sandbox_module, "fork_sandbox", no_process)
        sandbox.start()
        with pytest.raises(SandboxEndedError):
            await sandbox.run(b"sea")

    assert await sandbox.run(b"sea") == JobEnd(b"sea")
    sandbox.stop()


async def test_stopping_leaves_no_process(sandbox: Sandbox) -> None:
    await sandbox.run(b"sea")
    process = psutil.Process(sandbox.pid)

    sandbox.stop()

    while process.is_running():  # until it is reaped, too
        await asyncio.sleep(0.01)


@needs_freezer
async def test_a_sandbox_that_cannot_end_delays_nothing(sandbox: Sandbox) -> None:
    assert await sandbox.run(b"ebb") == JobEnd(b"ebb")
    with uninterruptible(sandbox.pid):
        sandbox.stop()
        assert psutil.pid_exists(sandbox.pid)
