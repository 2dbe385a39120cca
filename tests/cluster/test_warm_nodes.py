"""Which nodes get an empty task in an engine's environment, and how often."""

from typing import Any

import pytest

from serve_app.cluster import warm_nodes
from serve_app.cluster.placement import engine_environment
from serve_app.settings.tree import ModelSettings
from serve_app.wire.documents import WARMED, parse_warmed, read_document
from tests.stub_kv import StubKv

SMALL = {"CPU": 2.0}
GPU = {"CPU": 16.0, "GPU": 8.0, "accelerator_type:A100": 1.0}
# Ray takes node identifiers of 28 bytes only.
A, B, C = "a" * 56, "b" * 56, "c" * 56


class StubRay:
    """Takes tasks in place of Ray, which would place them."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, float]] = {A: SMALL, B: GPU}
        self.ran: list[tuple[str, Any]] = []
        self.late: set[str] = set()
        self.failing = False
        self.read: list[tuple[str, Any]] = []

    def remote(self, _: object) -> "StubRay":
        return self

    def options(self, *, runtime_env: Any, scheduling_strategy: Any, num_cpus: int, max_retries: int) -> Any:
        assert (num_cpus, max_retries, scheduling_strategy.soft) == (0, 0, False)
        node = scheduling_strategy.node_id

        class Task:
            @staticmethod
            def remote(*arguments: Any) -> tuple[str, int]:
                if arguments:
                    self.read.append((node, arguments))
                    return node, 0
                self.ran.append((node, runtime_env))
                return node, len(self.ran)

        return Task

    def wait(self, references: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert num_returns == len(references)
        assert timeout > 0
        late = [one for one in references if one[0] in self.late]
        return [one for one in references if one not in late], late

    def get(self, _: list[Any]) -> None:
        if self.failing:
            raise RuntimeError("no such module")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> StubRay:
    stub = StubRay()
    monkeypatch.setattr(warm_nodes, "ray", stub)
    monkeypatch.setattr(warm_nodes.state, "total_resources_per_node", lambda: stub.nodes)
    return stub


def model(**more: Any) -> ModelSettings:
    return ModelSettings.model_validate({"name": "tide", "model": "embedded", "device": "cpu", **more})


def nodes(ray: StubRay) -> list[str]:
    return [node for node, _ in ray.ran]


def test_a_task_runs_in_the_engines_environment_on_each_node_with_room(ray: StubRay) -> None:
    settings = model(cpus_per_replica=1)
    warm_nodes.warm([settings], set())
    assert ray.ran == [(node, engine_environment(settings, zygote=True)) for node in (A, B)]


def test_a_node_without_the_gpus_is_left_alone_and_one_with_a_part_is_not(ray: StubRay) -> None:
    warm_nodes.warm([model(device="gpu", tensor_parallel_size=16)], set())
    assert nodes(ray) == [B]


def test_each_node_is_warmed_once_and_new_ones_when_they_join(ray: StubRay) -> None:
    warmed: set[tuple[str, str]] = set()
    warm_nodes.warm([model()], warmed)
    ray.nodes[C] = SMALL
    warm_nodes.warm([model()], warmed)
    assert nodes(ray) == [A, B, C]


def test_a_task_that_did_not_end_in_time_is_run_again(ray: StubRay) -> None:
    warmed: set[tuple[str, str]] = set()
    ray.late = {B}
    warm_nodes.warm([model()], warmed)
    ray.late = set()
    warm_nodes.warm([model()], warmed)
    assert nodes(ray) == [A, B, B]


def test_a_task_that_failed_is_told_of_and_not_run_again(ray: StubRay) -> None:
    warmed: set[tuple[str, str]] = set()
    ray.failing = True
    with pytest.raises(RuntimeError, match="no such module"):
        warm_nodes.warm([model()], warmed)
    ray.failing = False
    warm_nodes.warm([model()], warmed)
    assert nodes(ray) == [A, B]


def test_the_policy_is_told_which_nodes_are_warm(ray: StubRay, kv: StubKv) -> None:
    warmed: set[tuple[str, str]] = set()
    ray.late = {B}
    warm_nodes.warm_and_tell("shop", [model()], warmed)
    assert read_document(WARMED, "shop", parse_warmed) == {(A, "tide")}
    del ray.nodes[A]
    ray.late = set()
    warm_nodes.warm_and_tell("shop", [model()], warmed)
    assert read_document(WARMED, "shop", parse_warmed) == {(B, "tide")}


def test_a_warm_node_reads_the_weights_and_the_embedded_ones_need_none(ray: StubRay) -> None:
    ray.late = {B}
    warm_nodes.warm([model(name="ours"), model(model="org/8b", revision="v2")], set())
    assert ray.read == [(A, ("org/8b", "v2"))]


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
