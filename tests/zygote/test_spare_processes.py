"""What a raylet is asked for, by its own service on a port of this process; no raylet runs behind it."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from ray.core.generated.common_pb2 import PYTHON
from ray.core.generated.node_manager_pb2 import PrestartWorkersReply, PrestartWorkersRequest
from ray.core.generated.node_manager_pb2_grpc import (
    NodeManagerServiceServicer,
    add_NodeManagerServiceServicer_to_server,
)
from ray.runtime_env import RuntimeEnv

from serve_app.cluster.placement import engine_environment
from serve_app.settings.tree import ModelSettings
from serve_app.zygote import warm_nodes
from serve_app.zygote.warm_nodes import start_spare_here, start_spares

ENVIRONMENT = engine_environment(
    ModelSettings(name="tide", model="embedded", device="cpu", env={"B": "2", "A": "1"}), zygote=True
)


@dataclass
class StubRaylet(NodeManagerServiceServicer):  # type: ignore[misc]
    """Answers as a raylet does, and starts nothing."""

    port: int = 0
    asked: list[PrestartWorkersRequest] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    def PrestartWorkers(  # noqa: N802
        self, request: PrestartWorkersRequest, context: grpc.ServicerContext
    ) -> PrestartWorkersReply:
        self.asked.append(request)
        self.headers |= context.invocation_metadata()
        return PrestartWorkersReply()

    @property
    def node(self) -> dict[str, Any]:
        return {"NodeID": "a", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": self.port}


@pytest.fixture
def raylet() -> Iterator[StubRaylet]:
    raylet, server = StubRaylet(), grpc.server(ThreadPoolExecutor(1))
    add_NodeManagerServiceServicer_to_server(raylet, server)
    raylet.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield raylet
    server.stop(None).wait()


@pytest.fixture(autouse=True)
def _context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for what Ray says of this process."""
    context = SimpleNamespace(
        get_job_id=lambda: "02000000", get_node_id=lambda: "a", runtime_env=RuntimeEnv(**ENVIRONMENT)
    )
    monkeypatch.setattr(warm_nodes.ray, "get_runtime_context", lambda: context)


def test_raylet_starts_workers_for_job_and_environment(raylet: StubRaylet) -> None:
    start_spares(raylet.node, ENVIRONMENT, 3)

    (request,) = raylet.asked
    assert raylet.headers["authorization"] == f"Bearer {os.environ['RAY_AUTH_TOKEN']}"
    assert request.keep_alive_duration_secs >= 30 * 24 * 3600
    assert (request.language, request.num_workers, request.job_id) == (PYTHON, 3, b"\x02\0\0\0")
    # Ray compares the text: one of the same meaning in another order would fit no actor.
    text = request.runtime_env_info.serialized_runtime_env
    assert text == RuntimeEnv(**ENVIRONMENT).serialize()
    assert text.index('"A": "1"') < text.index('"B": "2"') < text.index('"py_executable"')


def test_ending_replica_requests_a_spare_on_its_node(
    raylet: StubRaylet, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"NodeID": "b", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1}
    monkeypatch.setattr(warm_nodes.ray, "nodes", lambda: [other, raylet.node])

    start_spare_here()

    (request,) = raylet.asked
    assert request.num_workers == 1
    assert request.runtime_env_info.serialized_runtime_env == RuntimeEnv(**ENVIRONMENT).serialize()


def test_a_node_that_cannot_be_reached_is_an_error() -> None:
    with socket.socket() as taken:  # bound and not listening: no one else gets the port
        taken.bind(("127.0.0.1", 0))
        node = {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": taken.getsockname()[1]}

        with pytest.raises(grpc.RpcError):
            start_spares(node, ENVIRONMENT, 1)
