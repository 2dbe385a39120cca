"""The command line: what is attacked, and what is refused with a sentence."""

from pathlib import Path

import pytest

from benchmarks.chaos.attack import Attack
from benchmarks.chaos.options import parse
from benchmarks.chaos.roles import ROLES
from benchmarks.chaos.servers import ChaosError, read, with_engines
from benchmarks.chaos.three_nodes import pinned


def test_every_role_is_killed_and_then_stopped() -> None:
    attacks = parse([]).attacks()
    assert [one.role for one in attacks] == [role.name for role in ROLES] * 2
    assert [one.signal for one in attacks] == ["kill"] * len(ROLES) + ["stop"] * len(ROLES)


def test_only_some_roles_in_the_order_given() -> None:
    assert parse(["--only", "gcs,ingress", "--signal", "kill"]).attacks() == [
        Attack("gcs", "kill"),
        Attack("ingress", "kill"),
    ]


def test_three_nodes_are_lost_one_by_one_and_have_no_serve_run() -> None:
    attacks = parse(["--nodes", "3", "--signal", "kill"]).attacks(("head", "worker-1"))
    assert attacks[-2:] == [Attack("node", "kill", "head"), Attack("node", "kill", "worker-1")]
    assert "serve-run" not in {one.role for one in attacks}


def test_losses_in_a_row_have_a_load_and_engines_of_their_own() -> None:
    usual, in_a_row, nodes = parse([]), parse(["--losses", "9"]), parse(["--losses", "9", "--nodes", "3"])
    assert (usual.losses, usual.streams, usual.tokens, usual.engines) == (None, 16, 1000, None)
    assert (in_a_row.losses, in_a_row.streams, in_a_row.tokens, in_a_row.engines) == (9, 12, 600, 3)
    assert in_a_row.roles == ("engine-replica", "engine-core")
    assert nodes.roles == ("engine-replica", "engine-core", "raylet")
    assert parse(["--losses", "9", "--streams", "4"]).streams == 4


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--only", "gcs,kernel"], "--only = 'kernel': no such role; there are controller,"),
        (["--only", "node"], "--only = 'node': needs --nodes 3"),
        (["--minutes", "0"], "--minutes = 0: must be from 0.0166667 to 1440"),
        (["--streams", "0"], "--streams = 0: must be from 1 to 1000"),
        (["--losses", "0"], "--losses = 0: must be from 1 to 100000"),
        (
            ["--losses", "9", "--only", "gcs"],
            "--only = 'gcs': --losses loses engine-replica, engine-core, raylet",
        ),
        (["--losses", "9", "--only", "raylet"], "--only = 'raylet': --losses needs --nodes 3 for it"),
        (["--losses", "9", "--engines", "1"], "--engines = 1: --losses needs two, so that one is left"),
        (["--url", "http://127.0.0.1:8000"], "--url and --pid go together"),
        (["--pid", "1"], "--url and --pid go together"),
        (["--url", "http://x", "--pid", "1", "--nodes", "3"], "--nodes is of a server that is started here"),
    ],
)
def test_a_wrong_command_line_is_a_sentence(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(argv)
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_its_own_configuration_keeps_two_engines_up() -> None:
    served = read(parse([]).config)
    assert (served.model, served.engines) == ("tideserve-tiny", 2)


def test_as_many_engines_are_kept_up_as_were_asked_for() -> None:
    served = with_engines(read(parse([]).config), 3)
    (ingress,) = served.document["applications"][0]["deployments"]
    knobs = ingress["user_config"]["autoscaling"]["tideserve-tiny"]
    assert (served.engines, knobs) == (3, {"min_replicas": 3, "max_replicas": 3})


def test_a_configuration_without_replicas_is_refused(tmp_path: Path) -> None:
    text = parse([]).config.read_text()
    path = tmp_path / "serve.yaml"
    path.write_text(text.replace("min_replicas: 2", "min_replicas: 0"))
    with pytest.raises(ChaosError, match="min_replicas = 0; must be at least 1"):
        read(path)
    path.write_text("applications: []")
    with pytest.raises(ChaosError, match="needs one application with one model"):
        read(path)
    with pytest.raises(ChaosError, match="No such file"):
        read(tmp_path / "absent.yaml")


def test_on_three_nodes_each_replica_has_a_kind_of_node() -> None:
    document = pinned(read(parse([]).config).document, 8123, 2)
    args = document["applications"][0]["args"]
    assert document["http_options"]["port"] == 8123
    assert args["models"][0]["resources"] == {"engine:replicas": 1}
    assert args["zygote"] is False
    assert args["ingress"]["resources"] == {"ingress:replicas": 1}
    (ingress,) = document["applications"][0]["deployments"]
    assert ingress["user_config"]["ingress"] == {"min_replicas": 2, "max_replicas": 2}
