"""The ledger of a fleet that starts, loses and stops replicas while streams run."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.integration.cluster import Running
from tests.integration.fleet import ENGINES, MODEL, set_knobs, until, until_ready
from tests.integration.greedy_streams import greedy_streams, moves, pieces

TOKENS = 2000
WRITE_S = 1.0
"""Replicas write once a second: each reading of the ledger lacks at most so much of each replica."""

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


def total(fleet: Running) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{fleet.url}/usage", params={"by": "model"}, timeout=10).json()[
        "total"
    ]
    return found


@contextmanager
def lifetimes(fleet: Running) -> Iterator[dict[int, float]]:
    """Measure how long each engine replica lives within the block, in seconds by process id."""
    lived: dict[int, float] = {}
    ended = threading.Event()

    def look() -> None:
        last = time.monotonic()
        while not ended.wait(0.1):
            now = time.monotonic()
            for process in fleet.processes(ENGINES):
                lived[process.pid] = lived.get(process.pid, 0.0) + now - last
            last = now

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lived
    finally:
        ended.set()
        thread.join()


def test_all_gpu_seconds_and_tokens_are_in_the_ledger(fleet: Running) -> None:
    set_knobs(fleet, "min_replicas=2", "max_replicas=2")
    until_ready(fleet, 2)
    until(lambda: len(fleet.processes(ENGINES)), lambda count: count == 2, "the end of earlier replicas")
    before = total(fleet)

    def written() -> bool:
        return bool(total(fleet)["requests"] == before["requests"] + 6)

    def kill_a_replica() -> None:
        # Within its first second, a request whose replica is killed is in no write.
        until(written, bool, "the first write of all requests")
        fleet.processes(ENGINES)[0].kill()

    with lifetimes(fleet) as lived:
        answers = greedy_streams(fleet.port, MODEL, kill_a_replica, TOKENS)
        until(lambda: len(fleet.processes(ENGINES)), lambda count: count == 2, "a new replica")
        until_ready(fleet, 2)
        set_knobs(fleet, "min_replicas=1", "max_replicas=1")
        until(lambda: len(fleet.processes(ENGINES)), lambda count: count == 1, "the end of a replica")
    after = total(fleet)

    spent = after["gpu_seconds"] - before["gpu_seconds"]
    assert len(lived) == 3
    assert spent == pytest.approx(sum(lived.values()), rel=0.01, abs=2 * WRITE_S + WRITE_S)
    assert any(map(moves, answers))
    sent = sum(pieces(answer)[2] for answer in answers)
    counted = after["completion_tokens"] - before["completion_tokens"]
    # The killed replica has not written the tokens of its last second.
    assert 0.8 * sent <= counted <= sent + 2 * len(answers)
    assert after["requests"] - before["requests"] == len(answers)
