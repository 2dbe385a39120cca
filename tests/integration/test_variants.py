"""A model on two pools of one machine: the cheap one first, the other when it is lost, and back again."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cluster import Running, application, engine_settings
from tests.integration.fleet import MODEL, decisions, status, until
from tests.integration.greedy_streams import greedy_streams, moves, pieces

SPOT, ON_DEMAND = (f"ray::ServeReplica:tideserve:Engine-tide@{name}" for name in ("spot", "on-demand"))
POOLS = '{"CPU": 2, "spot": 2, "on-demand": 2}'
KNOBS: dict[str, Any] = {
    "min_replicas": 1,
    "max_replicas": 2,
    "ttft_target_s": 5.0,
    "itl_target_s": 1.0,
    "drain_move_after_s": 1,
}
VARIANTS = [
    {"name": "spot", "resources": {"spot": 1}, "usd_per_hour": 1.2, "preemptible": True},
    {"name": "on-demand", "resources": {"on-demand": 1}, "usd_per_hour": 3.7},
]

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def pools() -> Iterator[Running]:
    document = application(engine_settings(MODEL, variants=VARIANTS), knobs={MODEL: KNOBS})
    with Running(document, environment={"RAY_OVERRIDE_RESOURCES": POOLS}).serving() as running:
        yield running


def until_mix(pools: Running, **ready: int) -> None:
    def mix() -> dict[str, tuple[int, int]]:
        found = status(pools).get("variants", {})
        return {name: (int(each["target"]), int(each["ready"])) for name, each in found.items()}

    wanted = {name.replace("_", "-"): (count, count) for name, count in ready.items()}
    until(mix, lambda now: now == wanted, f"the mix {wanted}")


def test_streams_survive_the_loss_of_the_cheap_pool_and_work_moves_back(pools: Running) -> None:
    until_mix(pools, spot=2, on_demand=0)  # one serves, and one is spare
    undisturbed = greedy_streams(pools.port, MODEL, tokens=300)

    def lose_spot() -> None:
        for process in pools.processes(SPOT):
            os.kill(process.pid, signal.SIGKILL)

    disturbed = greedy_streams(pools.port, MODEL, lose_spot, tokens=300)

    assert any(map(moves, disturbed))
    assert [pieces(one) for one in disturbed] == [pieces(one) for one in undisturbed]
    until_mix(pools, spot=2, on_demand=0)
    notes = [note for record in decisions(pools) for note in record["notes"]]
    assert any(note.startswith("mix: spot gets no node.") for note in notes)
    assert any(note.startswith("mix: 1 on-demand") for note in notes)
