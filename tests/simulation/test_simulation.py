"""Worlds in which everything must hold. `pytest tests/simulation --seed N` repeats a world."""

import secrets
import time

import pytest

from tests.simulation.shrink import Kept, shrink
from tests.simulation.world import run_world


def check(kept: Kept) -> None:
    """Fail with one line if anything does not hold in a world. The line has the smallest such world."""
    world = run_world(kept)
    if not world.faults:
        return
    if kept.clients is None and kept.events is None:
        kept = shrink(kept, *world.size, lambda part: bool(run_world(part).faults))
        world = run_world(kept)
    pytest.fail(f"--seed {kept}: {'; '.join(world.faults)} [{world}]", pytrace=False)


def test_world_holds(seed: str) -> None:
    check(Kept.parse(seed))


@pytest.mark.parametrize("number", ["3", "14"])
def test_same_seed_gives_same_trace(number: str) -> None:
    first, again = (run_world(Kept(number)) for _ in range(2))
    assert len(first.trace) > 100
    assert first.trace == again.trace


@pytest.mark.timeout(0)
def test_new_worlds_hold(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    minutes = request.config.getoption("--minutes", default=None)
    if minutes is None:
        pytest.skip("make simulate runs worlds of new seeds")
    began, cpu, worlds = time.monotonic(), time.process_time(), 0
    try:
        while time.monotonic() < began + 60 * minutes:
            worlds += 1
            check(Kept(secrets.token_hex(4)))
    finally:
        each_s = (time.process_time() - cpu) / worlds
        with capsys.disabled():
            print(f"\n{worlds} worlds, {3600 / each_s:.0f} worlds per hour of one core")
