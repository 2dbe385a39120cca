import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import msgspec
import psutil
import pytest

from serve_app.engine.grammar.nursery import Answer, Job, Work, fork_nursery


def spin(_: bytes) -> bytes:
    while True:
        pass


def crash(_: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def grow(_: bytes) -> bytes:
    return bytes(512 << 20)[:1]


WORK: dict[bytes, Callable[[bytes], bytes]] = {
    b"echo": lambda payload: payload,
    b"long": lambda _: b"a" * 100_000,
    b"spin": spin,
    b"crash": crash,
    b"grow": grow,
}


def prepare() -> Work:
    return lambda payload: WORK[payload](payload)


@pytest.fixture
def nursery() -> Iterator[tuple[int, Connection]]:
    pid, connection = fork_nursery(prepare, cpu_s=0.2, memory_bytes=64 << 20)
    yield pid, connection
    connection.close()
    os.waitpid(pid, 0)  # it ends with its parent's end of the connection


def send(connection: Connection, number: int, payload: bytes | None) -> None:
    connection.send_bytes(msgspec.msgpack.encode(Job(number, payload)))


def received(connection: Connection) -> Answer:
    """The next answer that is more than the beginning of a job."""
    while (answer := msgspec.msgpack.decode(connection.recv_bytes(), type=Answer)).begun:
        pass
    return answer


@pytest.mark.parametrize(
    ("payload", "answer"),
    [
        (b"echo", Answer(1, b"echo")),
        (b"long", Answer(1, b"a" * 3500)),
        (b"spin", Answer(1, ended_by=signal.SIGPROF)),
        (b"crash", Answer(1, ended_by=signal.SIGKILL)),
        (b"grow", Answer(1, ended_by=signal.SIGABRT)),
    ],
)
def test_a_job_ends_with_its_result_or_at_its_bound(nursery, payload: bytes, answer: Answer) -> None:
    _, connection = nursery

    send(connection, 1, payload)

    assert received(connection) == answer


def test_jobs_run_beside_each_other_and_one_can_be_cancelled(nursery) -> None:
    _, connection = nursery

    send(connection, 1, b"spin")
    send(connection, 2, b"echo")
    assert received(connection) == Answer(2, b"echo")

    send(connection, 1, None)
    assert received(connection) == Answer(1, ended_by=signal.SIGKILL)


def test_it_can_be_forked_from_any_thread() -> None:
    with ThreadPoolExecutor(1) as thread:  # a replica's code does not run in the first one
        pid, connection = thread.submit(fork_nursery, prepare, 60, 64 << 20).result()
        send(connection, 1, b"echo")
        assert received(connection) == Answer(1, b"echo")
        connection.close()
        os.waitpid(pid, 0)


def test_nothing_outlives_the_process_that_asked() -> None:
    pid, connection = fork_nursery(prepare, cpu_s=60, memory_bytes=64 << 20)
    send(connection, 1, b"spin")
    send(connection, 2, b"echo")
    assert received(connection).number == 2
    (job,) = psutil.Process(pid).children()

    connection.close()
    os.waitpid(pid, 0)

    psutil.wait_procs([job], timeout=60)
    assert not job.is_running()
