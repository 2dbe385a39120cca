"""Which nodes get an empty task in an engine's environment and spare processes, and how often."""

from math import inf
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from ray.runtime_env import RuntimeEnv

from serve_app.cluster.placement import engine_environment
from serve_app.env import ZYGOTE
from serve_app.settings.tree import ModelSettings
from serve_app.wire.documents import WARMED, keys, parse_warmed, read_document
from serve_app.zygote import warm_nodes
from tests.stub_kv import StubKv

SMALL = {"CPU": 2.0}
GPU = {"CPU": 16.0, "GPU": 8.0, "accelerator_type:A100": 1.0}
# Ray takes node identifiers of 28 bytes only.
A, B, C = "a" * 56, "b" * 56, "c" * 56


class StubRay:
    """Takes tasks and requests for spare processes in place of Ray."""

    def __init__(self) -> None:
        self.resources: dict[str, dict[str, float]] = {A: SMALL, B: GPU}
        self.dead: set[str] = set()
        self.ran: list[tuple[str, Any]] = []
        self.late: set[str] = set()
        self.failing: set[str] = set()
        self.refused: set[str] = set()
        """Nodes whose zygote forks nothing."""
        self.read: list[tuple[str, Any]] = []
        self.spares: list[tuple[str, Any, int]] = []
        self.unreachable: set[str] = set()
        self.job = "02000000"
        self.inherited = RuntimeEnv()
        """The environment of the process that warms the nodes, which what it starts inherits."""

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "Alive": name not in self.dead, "Resources": resources}
            for name, resources in self.resources.items()
        ]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_job_id=lambda: self.job, runtime_env=self.inherited)

    def remote(self, *, max_calls: int) -> Any:
        assert max_calls == 1  # a worker that has run a task would stay, and is of no use
        return lambda _: self

    def options(self, *, runtime_env: Any, scheduling_strategy: Any, num_cpus: int, max_retries: int) -> Any:
        assert (num_cpus, max_retries, scheduling_strategy.soft) == (0, 0, False)
        node = scheduling_strategy.node_id

        def remote(*arguments: Any) -> tuple[str, int]:
            if arguments:
                assert ZYGOTE not in runtime_env["env_vars"]  # Ray would run it in a spare process
                self.read.append((node, arguments))
                return node, 0
            self.ran.append((node, runtime_env))
            return node, len(self.ran)

        return SimpleNamespace(remote=remote)

    def wait(self, references: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert num_returns == len(references)
        assert timeout > 0
        late = [one for one in references if one[0] in self.late]
        return [one for one in references if one not in late], late

    def get(self, reference: tuple[str, int]) -> bool:
        if reference[0] in self.failing:
            raise RuntimeError("no such module")
        return reference[0] not in self.refused

    def start_spares(self, node: Any, environment: Any, count: int) -> None:
        if node["NodeID"] in self.unreachable:
            raise grpc.RpcError("the raylet is gone")
        self.spares.append((node["NodeID"], environment, count))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch, kv: StubKv) -> StubRay:
    stub = StubRay()
    monkeypatch.setattr(warm_nodes, "ray", stub)
    monkeypatch.setattr(warm_nodes, "start_spares", stub.start_spares)
    return stub


def model(**more: Any) -> ModelSettings:
    return ModelSettings.model_validate({"name": "tide", "model": "embedded", "device": "cpu", **more})


def nodes(ray: StubRay) -> list[str]:
    return [node for node, _ in ray.ran]


def test_task_runs_on_each_node_with_room(ray: StubRay) -> None:
    settings = model(cpus_per_replica=1)
    warm_nodes.warm([settings], {})
    assert ray.ran == [(node, engine_environment(settings, zygote=True)) for node in (A, B)]


def test_node_without_gpus_for_its_part_is_left_alone(ray: StubRay) -> None:
    sixteen = {"device": "gpu", "tensor_parallel_size": 8, "pipeline_parallel_size": 2}
    warm_nodes.warm([model(**sixteen)], {})
    assert nodes(ray) == []

    warm_nodes.warm([model(**sixteen, placement_group_strategy="PACK")], {})
    assert nodes(ray) == [B]


def test_each_node_is_warmed_once(ray: StubRay) -> None:
    warmed: dict[tuple[str, str], float] = {}
    warm_nodes.warm([model()], warmed)
    ray.resources[C] = SMALL
    warm_nodes.warm([model()], warmed)
    assert nodes(ray) == [A, B, C]


def test_task_that_timed_out_runs_again(ray: StubRay) -> None:
    warmed: dict[tuple[str, str], float] = {}
    ray.late = {B}
    warm_nodes.warm([model()], warmed)
    ray.late = set()
    warm_nodes.warm([model()], warmed)
    assert nodes(ray) == [A, B, B]


def test_failed_task_is_reported_and_not_repeated(ray: StubRay) -> None:
    warmed: dict[tuple[str, str], float] = {}
    ray.failing = {A, B}
    with pytest.raises(RuntimeError, match="no such module"):
        warm_nodes.warm([model()], warmed)
    ray.failing = set()
    warm_nodes.warm([model()], warmed)
    assert nodes(ray) == [A, B]
    assert ray.spares == []


def test_a_node_whose_zygote_refused_is_not_warm(ray: StubRay, kv: StubKv) -> None:
    ray.refused = {A}
    warmed: dict[tuple[str, str], float] = {}
    for _ in range(2):
        warm_nodes.warm_and_report("shop", [model()], warmed)
        warm_nodes.warm_and_report("shop", [model()], {})  # of another ingress replica

    assert read_document(WARMED, "shop", parse_warmed) == {(B, "tide")}
    assert nodes(ray) == [A, B, A, A]


def test_a_node_whose_zygote_refused_is_tried_again_later(ray: StubRay) -> None:
    """The next zygote may have no thread after its imports."""
    warmed: dict[tuple[str, str], float] = {}
    ray.refused = {A}
    warm_nodes.warm([model()], warmed, 50.0)
    ray.refused = set()
    warm_nodes.warm([model()], warmed, 3649.0)
    assert nodes(ray) == [A, B]

    warm_nodes.warm([model()], warmed, 3650.0)

    assert nodes(ray) == [A, B, A]
    assert warmed == {(A, "tide"): inf, (B, "tide"): inf}


def test_the_policy_is_told_which_nodes_are_warm(ray: StubRay, kv: StubKv) -> None:
    warmed: dict[tuple[str, str], float] = {}
    ray.late = {B}
    warm_nodes.warm_and_report("shop", [model()], warmed)
    assert read_document(WARMED, "shop", parse_warmed) == {(A, "tide")}
    ray.dead = {A}
    ray.late = set()
    warm_nodes.warm_and_report("shop", [model()], warmed)
    assert read_document(WARMED, "shop", parse_warmed) == {(B, "tide")}


def test_warm_node_reads_weights_unless_embedded(ray: StubRay) -> None:
    ray.late = {B}
    warm_nodes.warm([model(name="ours"), model(model="org/8b", revision="v2")], {})
    assert ray.read == [(A, ("org/8b", "v2"))]


def test_changed_weights_are_read_with_existing_spares(ray: StubRay) -> None:
    warm_nodes.warm([model(model="org/8b")], {})
    warm_nodes.warm([model(model="org/70b")], {})

    read = [(node, name) for node, (name, _) in ray.read]
    assert read == [(A, "org/8b"), (B, "org/8b"), (A, "org/70b"), (B, "org/70b")]
    assert nodes(ray) == [A, B]


def spares(ray: StubRay) -> list[tuple[str, int]]:
    return [(node, count) for node, _, count in ray.spares]


def test_node_gets_up_to_two_spare_processes(ray: StubRay) -> None:
    warm_nodes.warm([model(cpus_per_replica=1)], {})

    assert spares(ray) == [(A, 2), (B, 2)]


def test_spares_are_in_the_environment_that_the_engines_inherit(ray: StubRay) -> None:
    ray.inherited = RuntimeEnv(working_dir="gcs://code.zip", env_vars={"TEAM": "sea", "VLLM_USE_V1": "0"})
    settings = model(env={"VLLM_USE_V1": "1"})

    warm_nodes.warm([settings], {})

    ours = engine_environment(settings, zygote=True)
    assert ray.spares[0][1] == {
        **ours,
        "working_dir": "gcs://code.zip",
        "env_vars": {"TEAM": "sea", **ours["env_vars"]},
    }


def test_second_warmer_leaves_existing_spares_alone(ray: StubRay, kv: StubKv) -> None:
    warm_nodes.warm([model()], {})
    ray.resources[C] = SMALL

    second: dict[tuple[str, str], float] = {}
    warm_nodes.warm([model()], second)

    assert nodes(ray) == [A, B, C]
    assert [node for node, _ in spares(ray)] == [A, B, C]
    assert second == dict.fromkeys([(A, "tide"), (B, "tide"), (C, "tide")], inf)


def test_of_two_warmers_at_the_same_time_one_starts_spares(
    ray: StubRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_nodes.warm([model()], {})
    monkeypatch.setattr(warm_nodes, "keys", lambda prefix: [])  # as the other one saw them before

    warm_nodes.warm([model()], {})

    assert nodes(ray) == [A, B, A, B]
    assert [node for node, _ in spares(ray)] == [A, B]


@pytest.mark.parametrize(
    ("other", "job", "inherited"),
    [
        (model(), "03000000", {}),
        (model(env={"VLLM_LOGGING_LEVEL": "DEBUG"}), "02000000", {}),
        (model(), "02000000", {"working_dir": "gcs://new_code.zip"}),
    ],
    ids=["job", "environment", "application"],
)
def test_what_no_spare_would_fit_has_spares_of_its_own(
    ray: StubRay, other: ModelSettings, job: str, inherited: dict[str, Any]
) -> None:
    warm_nodes.warm([model()], {})
    ray.job, ray.inherited = job, RuntimeEnv(**inherited)
    warm_nodes.warm([other], {})

    assert [node for node, _ in spares(ray)] == [A, B, A, B]


def test_models_of_the_same_environment_share_their_spares(ray: StubRay) -> None:
    warm_nodes.warm([model(), model(name="other")], {})

    assert [node for node, _ in spares(ray)] == [A, B]


def test_the_claims_of_a_node_that_is_gone_are_erased(ray: StubRay, kv: StubKv) -> None:
    warm_nodes.warm([model(name="org/8b")], {})
    ray.dead = {B}
    warm_nodes.warm([model(name="org/8b")], {})

    (claim,) = keys("spares/")
    assert claim.startswith(f"spares/{A}/02000000/")


def test_node_without_spares_is_reported_and_blocks_no_other(ray: StubRay) -> None:
    warmed: dict[tuple[str, str], float] = {}
    ray.unreachable = {A}
    with pytest.raises(grpc.RpcError, match="the raylet is gone"):
        warm_nodes.warm([model()], warmed)
    warm_nodes.warm([model()], warmed)

    assert nodes(ray) == [A, B]
    assert spares(ray) == [(B, 2)]


def test_a_model_that_fails_keeps_no_other_from_its_spares(ray: StubRay) -> None:
    ray.failing = {A}
    with pytest.raises(RuntimeError, match="no such module"):
        warm_nodes.warm([model()], {})

    assert spares(ray) == [(B, 2)]


def test_replicas_share_a_zygote_if_their_environment_is_the_same() -> None:
    def key(settings: ModelSettings) -> str:
        found: str = engine_environment(settings, zygote=True)["env_vars"]["TIDESERVE_ZYGOTE"]
        return found

    assert key(model()) == key(model(name="other"))
    assert key(model()) != key(model(env={"VLLM_LOGGING_LEVEL": "DEBUG"}))


def test_without_a_zygote_replicas_are_plain_python() -> None:
    environment = engine_environment(model(), zygote=False)
    assert set(environment) == {"env_vars"}
    assert "TIDESERVE_ZYGOTE" not in environment["env_vars"]
