"""Worlds in which everything must hold. `pytest tests/simulation --seed N` repeats a world."""

import secrets
import time

import pytest

from tests.simulation.world import run_world


def check(seed: str) -> None:
    """Fail with one line if anything does not hold in the world of a seed."""
    if (world := run_world(seed)).faults:
        pytest.fail(f"--seed {seed}: {'; '.join(world.faults)} [{world}]", pytrace=False)


def test_world_holds(seed: str) -> None:
    check(seed)


def test_same_seed_gives_same_trace() -> None:
    first, again = (run_world("3") for _ in range(2))
    assert len(first.trace) > 100
    assert first.trace == again.trace


@pytest.mark.timeout(0)
def test_new_worlds_hold(request: pytest.FixtureRequest) -> None:
    minutes = request.config.getoption("--minutes", default=None)
    if minutes is None:
        pytest.skip("make simulate runs worlds of new seeds")
    until = time.monotonic() + 60 * minutes
    while time.monotonic() < until:
        check(secrets.token_hex(4))
