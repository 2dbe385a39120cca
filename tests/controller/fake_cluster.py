"""A cluster without Ray: its nodes and pods, and the documents that its replicas write for the policy."""

import json
from typing import Any

from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.wire.documents import KNOBS, put_document
from serve_app.wire.phases import publish_phase
from serve_app.wire.resources import ComingNode, Node
from serve_app.wire.served_models import ServedApplication, ServedModel
from tests.stub_kv import StubKv

START = 1_700_000_000.0
TIDE = "Engine-tide"


class FakeCluster:
    """What Ray and Kubernetes say of the cluster, and how often they were asked."""

    def __init__(self) -> None:
        self.free = [{"GPU": 0.0, "CPU": 4.0}] * 2
        """By node."""
        self.asked = 0
        self.enabled = False
        self.pods_read = 0
        self.coming: tuple[ComingNode, ...] = ()

    def read_nodes(self) -> tuple[Node, ...]:
        self.asked += 1
        total = {"GPU": 4.0, "CPU": 4.0}
        return tuple(Node(total, free, f"node {index}") for index, free in enumerate(self.free))

    def read(self) -> str:
        self.pods_read += 1
        return "pod engine-1: 0/2 nodes are available"


def serve(*, zygote: bool = True, **knobs: Any) -> None:
    """What an ingress replica writes."""
    model = ServedModel("tide", TIDE, Knobs(**knobs), {"GPU": 1.0})
    served = ServedApplication({TIDE: model}, IngressKnobs(), zygote=zygote)
    put_document(KNOBS, "shop", served.document(START))


def phase(
    replica: str, name: str, since: float = START, more: dict[str, str] | None = None, **durations_s: float
) -> None:
    """What an engine replica writes."""
    document = {
        "phase": name,
        "since": since,
        "durations_s": durations_s,
        "warm_node": True,
        "identity": "",
        **(more or {}),
    }
    if name == "failed":
        document |= {"during": "imports", "reason": "?"}
    publish_phase("shop", TIDE, replica, json.dumps(document))


def left(kv: StubKv) -> set[str]:
    """The replicas of which there is a phase document."""
    prefix = f"phase/shop/{TIDE}/"
    return {key.decode().removeprefix(prefix) for _, key in kv.kept if key.startswith(prefix.encode())}


def written(kv: StubKv, kind: str) -> int:
    return kv.written.count(f"{kind}/shop")
