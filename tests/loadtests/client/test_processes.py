import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.client.processes import IGNORED, ClientProcesses, Message, Unpacker, deal, pack
from loadtests.plan import Planned
from loadtests.record import Record, Timekeeping
from loadtests.scenario import Client, Closed
from tests.loadtests.client.driving import WAIT_S, Stub, planned, target

TWO = Client(processes=2)


def polled(
    clients: ClientProcesses, until: Callable[[], bool], found: list[Record] | None = None
) -> list[Record]:
    """The records that come until something holds, after those in `found`."""
    found = [] if found is None else found
    give_up = time.monotonic() + WAIT_S
    while not until():
        assert time.monotonic() < give_up, f"{len(found)} records, {clients.failed!r}"
        found += clients.poll()
        time.sleep(0.005)
    found += clients.poll()
    return found


def begun(clients: ClientProcesses) -> None:
    clients.start()
    polled(clients, lambda: clients.ready)
    clients.begin(time.monotonic() + 0.1)


def plan_of(first: int, count: int) -> Iterator[Planned]:
    return (planned(first + index) for index in range(count))


def test_processes_share_a_plan_and_their_records_come_while_they_run(stub: Stub) -> None:
    plan = [planned(index, 0.02 * index) for index in range(20)]
    plan.append(planned(20, 0.1, output_tokens=100))  # 2 s
    with ClientProcesses.of_open_loop(plan, target(stub.url, seed=700), TWO) as clients:
        begun(clients)
        assert clients.timekeeping is None
        records: list[Record] = []
        polled(clients, lambda: bool(records), records)
        assert not clients.finished
        for pid in clients.pids:  # As Ctrl-C in a terminal does, which is for the parent to act on.
            os.kill(pid, signal.SIGINT)
            assert os.getsid(pid) == os.getsid(0)
        polled(clients, lambda: clients.finished, records)
        kept, pids = clients.timekeeping, clients.pids
        assert clients.failed == ""
    assert sorted(record.index for record in records) == list(range(21))
    assert {record.outcome for record in records} == {"answered"}
    assert kept is not None
    assert 0 < kept.noticed_p99_ms <= kept.noticed_max_ms
    assert len(pids) == 2
    assert not any(map(psutil.pid_exists, pids))


def test_a_process_that_dies_is_an_error(stub: Stub) -> None:
    plan = [planned(index, output_tokens=10_000) for index in range(4)]
    with ClientProcesses.of_open_loop(plan, target(stub.url, seed=701), TWO) as clients:
        begun(clients)
        os.kill(clients.pids[0], signal.SIGKILL)
        polled(clients, lambda: clients.failed != "")
        assert clients.failed == "client process 0 ended by signal 9 before its requests were over"
        assert not clients.finished
        clients.stop()
        records = polled(clients, lambda: clients.finished)
        assert clients.timekeeping is None
    assert {record.index for record in records} <= {1, 3}
    assert {record.error for record in records} <= {"the run was interrupted"}


def broken_plan(count: int) -> Iterator[Planned]:
    yield from plan_of(0, count)
    raise RuntimeError("the plan is broken")


def test_processes_share_a_closed_loop_and_report_errors(
    stub: Stub, capfd: pytest.CaptureFixture[str]
) -> None:
    how = Closed(streams=3, for_s=60)
    fine = functools.partial(plan_of, 0, 9)
    with ClientProcesses.of_closed_loop(how, fine, target(stub.url, seed=702), TWO) as clients:
        broken = functools.partial(broken_plan, 1)
        with ClientProcesses.of_closed_loop(how, broken, target(stub.url, seed=703), Client()) as others:
            clients.start()
            begun(others)
            polled(others, lambda: others.finished)
            assert others.failed == "client process 0 failed: RuntimeError: the plan is broken"
        polled(clients, lambda: clients.ready)
        clients.begin(time.monotonic())
        records = polled(clients, lambda: clients.finished)
        assert clients.failed == ""
    assert sorted(record.index for record in records) == list(range(9))
    assert "the plan is broken" in capfd.readouterr().err


PARENT = """
import sys, time
from loadtests.client.processes import ClientProcesses
from loadtests.scenario import Client
from tests.loadtests.client.driving import planned, target
if __name__ == "__main__":
    plan = [planned(index, output_tokens=100_000) for index in range(2)]
    waiting = ClientProcesses.of_open_loop(plan, target(sys.argv[1], seed=704), Client())
    busy = ClientProcesses.of_open_loop(plan, target(sys.argv[1], seed=704), Client())
    for clients in (waiting, busy):
        clients.start()
        while not clients.ready:
            clients.poll()
            time.sleep(0.005)
    busy.begin(time.monotonic())
    print(*waiting.pids, *busy.pids, flush=True)
    time.sleep(60)
"""


def test_clients_die_with_a_parent_that_is_killed(stub: Stub) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, stub.url], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        clients = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(clients) == 2
        parent.kill()
    _, alive = psutil.wait_procs(clients, timeout=WAIT_S)
    assert not alive


def test_requests_are_dealt_out_in_turn_by_their_times() -> None:
    shares = deal([planned(index, -float(index)) for index in range(5)], 3)

    assert [[one.index for one in share] for share in shares] == [[4, 1], [3, 0], [2]]
    assert deal([], 8) == [()]


def test_signals_to_the_process_group_do_not_end_a_client(stub: Stub) -> None:
    plan = [planned(index, output_tokens=20) for index in range(3)]
    with ClientProcesses.of_open_loop(plan, target(stub.url, seed=705), Client()) as clients:
        begun(clients)
        for number in IGNORED:
            os.kill(clients.pids[0], number)
        records = polled(clients, lambda: clients.finished)
        assert clients.failed == ""
    assert [record.outcome for record in records] == ["answered"] * 3


MESSAGES: list[Message] = [
    Message(),
    Message(
        Record(0, "default", "tide", 0.0, 0.001, 2.5, "answered", 200, 1, "", (1.0, 2.0), 5, 2, 5, 2, None)
    ),
    Message(Record(1, "ü", "tide", 1.0, 1.0, 2.5, "failed", error="no", phases=((1.5, "imports"),))),
    Message(timekeeping=Timekeeping(1.0, 2.0, 3.0, 4.0, 0.5)),
    Message(failed="it broke"),
]
DATA = b"".join(map(pack, MESSAGES))


@given(st.lists(st.integers(0, len(DATA)), max_size=20))
def test_messages_survive_any_cut(cuts: list[int]) -> None:
    unpacker, found = Unpacker(), list[Message]()
    edges = [0, *sorted(cuts), len(DATA)]
    for start, end in itertools.pairwise(edges):
        found += unpacker.feed(DATA[start:end])
    assert found == MESSAGES


def test_bytes_that_are_no_message_are_an_error() -> None:
    with pytest.raises(msgspec.DecodeError, match="array"):
        list(Unpacker().feed(b"\x01\x00\x00\x00x"))
