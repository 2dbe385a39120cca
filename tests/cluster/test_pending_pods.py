import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve_app.cluster import pending_pods
from serve_app.cluster.pending_pods import PendingPods, why_pods_wait
from serve_app.wire.resources import ComingNode
from tests.http_server import serving

client = pytest.importorskip("kubernetes.client")

NO_ROOM = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
PROBLEM = "cannot list pods in namespace tide: 403 Forbidden (the service account's role does not allow it)"


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


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        ([pod("head", 0), pod("worker-a", 1), pod("worker-b", 4)], f"pod worker-a: {NO_ROOM}"),
        ([pod("a", 1, pulling()), pod("b", 1)], f"pod b: {NO_ROOM}"),  # a pod without a node comes first
        ([pod("a", 1, pulling())], "pod a: ErrImagePull: not found"),
        ([pod("a", 1, {"conditions": []})], ""),  # the scheduler has not looked at it
        ([], ""),
    ],
)
def test_the_first_gpu_pod_says_why_it_waits(pods: list[dict[str, Any]], reason: str) -> None:
    assert why_pods_wait(pods) == reason


@pytest.mark.parametrize("containers", ["containers", "initContainers"])
def test_gpus_of_limits_and_of_init_containers_count(containers: str) -> None:
    limited = pod("a", 0)
    limited["spec"][containers] = [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]

    assert why_pods_wait([limited]) == f"pod a: {NO_ROOM}"


class ApiServer:
    """Gives one answer, and keeps the paths that were asked for."""

    def __init__(self) -> None:
        self.reply: tuple[int, Any] = (200, {"items": []})
        self.asked: list[str] = []
        self.url = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        self.asked.append(path)
        return self.reply


@pytest.fixture
def server() -> Iterator[ApiServer]:
    server = ApiServer()
    with serving(server.answer) as server.url:
        yield server


def reader(url: str, timeout_s: float = 3.0) -> PendingPods:
    configuration = client.Configuration()
    configuration.host = url
    configuration.retries = False
    return PendingPods(client.CoreV1Api(client.ApiClient(configuration)), "tide", timeout_s)


def test_pending_pods_of_the_namespace_are_read(server: ApiServer) -> None:
    server.reply = (200, {"items": [pod("a", 1)]})

    assert reader(server.url).read() == f"pod a: {NO_ROOM}"
    assert server.asked == ["/api/v1/namespaces/tide/pods?fieldSelector=status.phase%3DPending"]


def test_a_forbidden_list_is_reported_once(server: ApiServer, logged: pytest.LogCaptureFixture) -> None:
    server.reply = (403, {"kind": "Status", "reason": "Forbidden", "message": "pods is forbidden"})
    pods = reader(server.url)

    assert (pods.read(), pods.read()) == (PROBLEM, "")
    assert [record.message for record in logged.records] == [
        f"{PROBLEM}; pending replicas have Ray's reasons only"
    ]


@pytest.mark.parametrize(
    "answer", [(500, {"message": "etcd is gone"}), (200, b"<html>"), (200, {"kind": "Status"})]
)
def test_an_answer_that_is_no_list_is_reported(server: ApiServer, answer: tuple[int, Any]) -> None:
    server.reply = answer

    assert reader(server.url).read().startswith("cannot list pods in namespace tide: ")


def test_a_server_that_is_down_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    assert reader(url).read().startswith("cannot list pods in namespace tide: NewConnectionError")


def test_a_silent_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "ReadTimeoutError" in reader(url, timeout_s=0.05).read()


def test_outside_a_cluster_there_is_nothing_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    pods = PendingPods()

    assert not pods.enabled
    assert pods.read() == ""


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged, whether or not Ray has cut its loggers off from the root by now."""
    monkeypatch.setattr(pending_pods.logger, "propagate", False)
    monkeypatch.setattr(pending_pods.logger, "handlers", [caplog.handler])
    caplog.set_level(logging.INFO, pending_pods.logger.name)
    return caplog


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder taken for the one where Kubernetes mounts the service account."""
    from kubernetes.config import incluster_config

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(pending_pods, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    return tmp_path


def test_without_a_token_there_is_no_api(account: Path) -> None:
    assert not PendingPods().enabled


def test_without_the_client_there_is_nothing_to_ask(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (account / "token").write_text("secret")
    monkeypatch.setattr(pending_pods, "find_spec", lambda name: None)

    assert not PendingPods().enabled


def test_a_broken_service_account_is_no_error(account: Path, logged: pytest.LogCaptureFixture) -> None:
    """A token, and nothing else the client wants: it is told, and read as no reason."""
    (account / "token").write_text("secret")
    pods = PendingPods()

    assert pods.enabled
    assert pods.read() == ""
    assert not pods.enabled
    assert "its API cannot be used" in logged.text


def test_in_a_cluster_the_service_account_is_used(account: Path) -> None:
    for name, text in (("token", "secret"), ("namespace", "tide\n"), ("ca.crt", "a certificate")):
        (account / name).write_text(text)
    pods = PendingPods()

    pods._connect()

    assert pods._namespace == "tide"
    configuration = pods._api.api_client.configuration
    assert configuration.host == "https://10.0.0.1:443"
    assert configuration.retries is False


def worker(name: str, start: str, **meta: str) -> dict[str, Any]:
    container = {"args": [start], "env": [{"name": "RAY_IP", "valueFrom": {}}]}
    labels = {"ray.io/node-type": "worker"}
    found = {"name": name, "labels": labels, "creationTimestamp": "2026-11-28T12:00:00Z", **meta}
    return {"metadata": found, "spec": {"containers": [container]}, "status": {"phase": "Pending"}}


def test_pending_worker_is_a_node_with_the_resources_of_ray_start() -> None:
    start = "ulimit -n 65536; ray start  --address=head:6379 --num-gpus=4 --memory=1000 --num-cpus=8 --block "
    start += """--resources='{"a100-x4:replicas":1}' && sleep 1"""
    head = worker("head", start)
    head["metadata"]["labels"] = {"ray.io/node-type": "head"}
    ends = worker("ends", start, deletionTimestamp="2026-11-28T12:01:00Z")

    found = pending_pods.coming_nodes([head, ends, pod("other", 1), worker("w", start), worker("s", "true")])

    total = {"GPU": 4.0, "CPU": 8.0, "memory": 1000.0, "a100-x4:replicas": 1}
    assert found == (ComingNode("w", total, 1795867200.0),)


def test_resources_in_double_quotes_are_read() -> None:
    start = r'''ray start --num-cpus=2 --resources="{\"small:replicas\":1}"'''

    assert pending_pods.coming_nodes([worker("w", start)])[0].total == {
        "GPU": 0.0,
        "CPU": 2.0,
        "small:replicas": 1,
    }
