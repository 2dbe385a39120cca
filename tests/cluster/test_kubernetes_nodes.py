from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from serve_app.cluster import kubernetes_nodes
from serve_app.cluster.kubernetes_nodes import GpuNodes, KubernetesNodes, gpu_nodes

client = pytest.importorskip("kubernetes.client")

NO_ROOM = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
PROBLEM = "cannot list nodes: 403 Forbidden (the service account's role does not allow it)"


def node(gpus: str | None, ready: str = "True", **spec: Any) -> dict[str, Any]:
    allocatable = {"cpu": "96", "memory": "1Ti"} | ({"nvidia.com/gpu": gpus} if gpus is not None else {})
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
    return {"spec": spec, "status": {"allocatable": allocatable, "conditions": conditions}}


def pod(name: str, gpus: int, status: dict[str, Any] | None = None) -> dict[str, Any]:
    resources = (
        {"requests": {"cpu": "1", "nvidia.com/gpu": str(gpus)}} if gpus else {"requests": {"cpu": "1"}}
    )
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"resources": resources}, {"resources": {}}]},
        "status": {"phase": "Pending", **(status or unschedulable())},
    }


def unschedulable(message: str = NO_ROOM) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"conditions": [condition]}


def pulling() -> dict[str, Any]:
    return {
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}],
    }


def test_nodes_without_a_gpu_are_not_counted() -> None:
    found = gpu_nodes([node(None), node("8"), node("4")], [])

    assert found == GpuNodes(2, 2, 12, 0, 0)


def test_a_node_that_is_not_ready_or_is_cordoned_supplies_nothing() -> None:
    found = gpu_nodes(
        [node("8", "False"), node("8", "Unknown"), node("8", unschedulable=True), node("2")], []
    )

    assert (found.nodes, found.ready_nodes, found.allocatable_gpus) == (4, 1, 2)


def test_a_node_whose_device_plugin_is_down_is_a_gpu_node_with_no_gpu() -> None:
    down = node(None)
    down["status"]["capacity"] = {"nvidia.com/gpu": "8"}

    assert gpu_nodes([down, node("0")], []) == GpuNodes(2, 2, 0, 0, 0)


def test_pending_pods_are_counted_with_their_gpus_and_the_schedulers_reason() -> None:
    found = gpu_nodes([], [pod("head", 0), pod("worker-a", 1), pod("worker-b", 4)])

    assert found == GpuNodes(0, 0, 0, 2, 5, f"pod worker-a: {NO_ROOM}")


def test_a_pod_that_runs_by_now_is_not_pending() -> None:
    running = pod("worker", 1)
    running["status"] = {"phase": "Running"}

    assert gpu_nodes([], [running]).pending_pods == 0


def test_a_pod_without_a_node_speaks_before_one_that_pulls_its_image() -> None:
    found = gpu_nodes([], [pod("a", 1, pulling()), pod("b", 1)])

    assert found.message == f"pod b: {NO_ROOM}"


def test_a_pod_that_cannot_pull_its_image_says_so() -> None:
    assert gpu_nodes([], [pod("a", 1, pulling())]).message == "pod a: ErrImagePull: not found"


def test_a_pod_nobody_has_looked_at_yet_gives_no_reason() -> None:
    assert gpu_nodes([], [pod("a", 1, {"conditions": []})]).message == ""


def test_gpus_of_limits_and_of_init_containers_count() -> None:
    limited = pod("a", 0)
    limited["spec"]["containers"] = [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}] * 2
    checks = pod("b", 0)
    checks["spec"]["initContainers"] = [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]

    assert gpu_nodes([], [limited, checks]).pending_gpus == 4 + 8


def test_what_is_unknown_is_none_and_not_zero() -> None:
    assert gpu_nodes(None, None) == GpuNodes()
    assert gpu_nodes([node("1")], None) == GpuNodes(1, 1, 1)
    assert gpu_nodes(None, [pod("a", 1)]) == GpuNodes(None, None, None, 1, 1, f"pod a: {NO_ROOM}")


class ApiServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, ApiServer)
        self.server.asked.append(self.path)
        status, body = self.server.answers["pods" if "/pods" in self.path else "nodes"]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def reader(port: int, timeout_s: float = 3.0) -> KubernetesNodes:
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{port}"
    configuration.retries = False
    return KubernetesNodes(client.CoreV1Api(client.ApiClient(configuration)), "tide", timeout_s)


def test_nodes_of_the_cluster_and_pending_pods_of_the_namespace_are_read(server: ApiServer) -> None:
    server.answers = {"nodes": (200, {"items": [node("8")]}), "pods": (200, {"items": [pod("a", 1)]})}

    assert reader(server.server_port).read() == GpuNodes(1, 1, 8, 1, 1, f"pod a: {NO_ROOM}")
    assert server.asked == [
        "/api/v1/nodes?resourceVersion=0",
        "/api/v1/namespaces/tide/pods?fieldSelector=status.phase%3DPending",
    ]


def test_what_the_role_does_not_allow_is_told_once_and_never_raised(
    server: ApiServer, logged: pytest.LogCaptureFixture
) -> None:
    forbidden = {"kind": "Status", "reason": "Forbidden", "message": "nodes is forbidden"}
    server.answers = {"nodes": (403, forbidden), "pods": (200, {"items": [pod("a", 1)]})}
    nodes = reader(server.server_port)

    first, second = nodes.read(), nodes.read()

    assert first == GpuNodes(None, None, None, 1, 1, f"pod a: {NO_ROOM}; {PROBLEM}")
    assert second == GpuNodes(None, None, None, 1, 1, f"pod a: {NO_ROOM}")
    assert [record.message for record in logged.records] == [
        f"{PROBLEM}; GPU capacity is reported without it"
    ]


@pytest.mark.parametrize(
    "answer", [(500, {"message": "etcd is gone"}), (200, b"<html>"), (200, {"kind": "Status"})]
)
def test_an_answer_that_is_no_list_is_told_and_not_raised(server: ApiServer, answer: tuple[int, Any]) -> None:
    server.answers = {"nodes": (200, {"items": []}), "pods": answer}

    found = reader(server.server_port).read()

    assert (found.nodes, found.pending_pods) == (0, None)
    assert found.message.startswith("cannot list pods in namespace tide: ")


def test_a_server_that_is_not_there_is_told_and_not_raised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    found = reader(port).read()

    assert found.nodes is None
    assert found.message.startswith("cannot list nodes: NewConnectionError")


def test_a_server_that_does_not_answer_is_waited_for_only_so_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = reader(silent.getsockname()[1], timeout_s=0.05).read()

    assert "ReadTimeoutError" in found.message


def test_outside_a_cluster_there_is_nothing_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    nodes = KubernetesNodes()

    assert not nodes.enabled
    assert nodes.read() == GpuNodes()


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged, whether or not Ray has cut its loggers off from the root by now."""
    monkeypatch.setattr(kubernetes_nodes.logger, "propagate", False)
    monkeypatch.setattr(kubernetes_nodes.logger, "handlers", [caplog.handler])
    caplog.set_level(logging.INFO, kubernetes_nodes.logger.name)
    return caplog


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder taken for the one where Kubernetes mounts the service account."""
    from kubernetes.config import incluster_config

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(kubernetes_nodes, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    return tmp_path


def test_without_a_service_account_s_token_there_is_nothing_to_ask(account: Path) -> None:
    assert not KubernetesNodes().enabled


def test_without_the_client_there_is_nothing_to_ask(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (account / "token").write_text("secret")
    monkeypatch.setattr(kubernetes_nodes, "find_spec", lambda name: None)

    assert not KubernetesNodes().enabled


def test_a_broken_service_account_is_no_error(account: Path, logged: pytest.LogCaptureFixture) -> None:
    """A token, and nothing else the client wants: it says so, and capacity is reported without Kubernetes."""
    (account / "token").write_text("secret")
    nodes = KubernetesNodes()

    assert nodes.enabled
    assert nodes.read() == GpuNodes()
    assert not nodes.enabled
    assert "its API cannot be used" in logged.text


def test_in_a_cluster_the_service_account_is_used(account: Path) -> None:
    for name, text in (("token", "secret"), ("namespace", "tide\n"), ("ca.crt", "a certificate")):
        (account / name).write_text(text)
    nodes = KubernetesNodes()

    nodes._connect()

    assert nodes._namespace == "tide"
    configuration = nodes._api.api_client.configuration
    assert configuration.host == "https://10.0.0.1:443"
    assert configuration.retries is False
