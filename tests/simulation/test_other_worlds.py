"""Worlds beside the request path. `pytest tests/simulation --seed batch-17` repeats a world."""

import itertools
import secrets
import time

import pytest

from tests.simulation.batches import run_batches
from tests.simulation.fleets import run_fleet
from tests.simulation.ledger import run_ledger

_RUN = {"batch": run_batches, "ledger": run_ledger, "policy": run_fleet}


def check(seed: str) -> None:
    """Fail with one line if anything does not hold in the world of a seed such as `batch-17`."""
    if (world := _RUN[seed.partition("-")[0]](seed)).faults:
        pytest.fail(f"--seed {seed}: {'; '.join(world.faults)} [{world}]", pytrace=False)


def test_named_world_holds(named_seed: str) -> None:
    check(named_seed)


@pytest.mark.parametrize("kind", _RUN)
def test_same_named_seed_gives_same_trace(kind: str) -> None:
    first, again = (_RUN[kind](f"{kind}-1").trace for _ in range(2))
    assert first
    assert first == again


@pytest.mark.timeout(0)
def test_new_named_worlds_hold(request: pytest.FixtureRequest) -> None:
    minutes = request.config.getoption("--minutes", default=None)
    if minutes is None:
        pytest.skip("make simulate runs worlds of new seeds")
    until = time.monotonic() + 60 * minutes
    for kind in itertools.cycle(_RUN):
        if time.monotonic() > until:
            return
        check(f"{kind}-{secrets.token_hex(4)}")
