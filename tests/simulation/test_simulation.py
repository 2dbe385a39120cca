"""Worlds in which everything must hold. `pytest tests/simulation --seed N` repeats a world."""

import gc
import itertools
import secrets
import time

import pytest

from tests.simulation.batches import BatchWorld
from tests.simulation.conftest import TWICE
from tests.simulation.fleets import FleetWorld
from tests.simulation.ledger import LedgerWorld
from tests.simulation.request_world import THEMES, RequestWorld
from tests.simulation.shrink import Kept, shrink
from tests.simulation.world import World

_WORLDS: dict[str, type[World]] = {"batch": BatchWorld, "ledger": LedgerWorld, "policy": FleetWorld}
"""By the first word of a seed such as `batch-17`. All others are of the request path."""


def run(seed: str) -> World:
    """Run the world of a seed to its end."""
    world = _WORLDS.get(seed.partition("-")[0], RequestWorld)(seed)
    world.finish()
    return world


def check(seed: str) -> World:
    """Return a world in which all holds; else fail with one line, which has the smallest such world."""
    world = run(seed)
    if not world.faults:
        return world
    faults = world.faults
    if isinstance(world, RequestWorld) and ":" not in seed:
        seed = str(shrink(Kept(seed), *world.size, lambda part: bool(run(str(part)).faults)))
        world = run(seed)
    said = "; ".join(world.faults) or f"{'; '.join(faults)}; a second run in this process had no fault"
    pytest.fail(f"--seed {seed}: {said} [{world}]", pytrace=False)


def test_world_holds(seed: str) -> None:
    check(seed)


@pytest.mark.parametrize("twice", TWICE)
def test_world_holds_and_has_the_same_trace_again(twice: str) -> None:
    gc.disable()  # else what fills a cache of this process in the first run moves the next collection
    try:
        first, again = (check(twice).loop.network.trace for _ in range(2))
    finally:
        gc.enable()
    assert first
    assert first == again


@pytest.mark.timeout(0)
def test_new_worlds_hold(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    minutes = request.config.getoption("--minutes", default=None)
    if minutes is None:
        pytest.skip("make simulate runs worlds of new seeds")
    began, cpu, worlds = time.monotonic(), time.process_time(), 0
    kinds = itertools.cycle([*[""] * 9, *(f"{kind}-" for kind in (*THEMES, *_WORLDS))])
    try:
        while time.monotonic() < began + 60 * minutes:
            worlds += 1
            check(next(kinds) + secrets.token_hex(4))
    finally:
        each_s = (time.process_time() - cpu) / worlds
        with capsys.disabled():
            print(f"\n{worlds} worlds, {3600 / each_s:.0f} worlds per hour of one core")
