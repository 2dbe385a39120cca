from typing import Any

import pytest
from ray.serve.schema import DeploymentSchema, RayActorOptionsSchema

from serve_app.cluster.placement import placement, replica_resources
from serve_app.settings.tree import ModelSettings


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ({"device": "cpu", "cpus_per_replica": 2, "accelerator_type": "A100"}, {"num_cpus": 2}),
        ({"device": "cpu", "resources": {"spot": 0.5}}, {"num_cpus": 1, "resources": {"spot": 0.5}}),
        ({"accelerator_type": "H100"}, {"num_cpus": 1, "num_gpus": 1, "accelerator_type": "H100"}),
        ({"accelerator_type": None}, {"num_cpus": 1, "num_gpus": 1}),
        (
            {"accelerator_type": "H100", "tensor_parallel_size": 4, "pipeline_parallel_size": 2},
            {"num_cpus": 1, "num_gpus": 8, "accelerator_type": "H100"},
        ),
        (
            {"accelerator_type": None, "resources": {"x1": 1}},
            {"num_cpus": 1, "num_gpus": 1, "resources": {"x1": 1}},
        ),
    ],
)
def test_a_replica_on_one_node_holds_all_itself(model: dict[str, Any], options: dict[str, Any]) -> None:
    assert placement(ModelSettings(name="a", **model)) == {"ray_actor_options": options}


def test_each_gpu_has_a_bundle_over_several_nodes() -> None:
    """Ray starts the replica's actor in bundle 0: what it asks for must be there."""
    model = ModelSettings(
        name="a",
        accelerator_type="A100",
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        cpus_per_replica=3,
        resources={"x4": 1},
        placement_group_strategy="PACK",
    )

    placed = placement(model)

    other = {"GPU": 1, "accelerator_type:A100": 0.001}
    assert placed == {
        "ray_actor_options": {"num_cpus": 3, "resources": {"x4": 1}},
        "placement_group_bundles": [{"CPU": 3, "x4": 1, **other}, other, other, other],
        "placement_group_strategy": "PACK",
    }
    assert len({id(bundle) for bundle in placed["placement_group_bundles"]}) == 4


def test_gpus_of_any_type_need_no_accelerator_resource() -> None:
    settings = {"accelerator_type": None, "tensor_parallel_size": 2, "placement_group_strategy": "SPREAD"}
    placed = placement(ModelSettings.model_validate({"name": "a", **settings}))
    assert placed["placement_group_bundles"] == [{"CPU": 1, "GPU": 1}, {"GPU": 1}]
    assert placed["placement_group_strategy"] == "SPREAD"


@pytest.mark.parametrize("strategy", ["STRICT_PACK", "PACK"])
def test_the_schema_of_ray_serve_takes_custom_resources(strategy: Any) -> None:
    resources = {"tide": 0.001}
    model = ModelSettings(
        name="a", tensor_parallel_size=2, placement_group_strategy=strategy, resources=resources
    )
    options = DeploymentSchema(name="Engine-a", **placement(model)).ray_actor_options
    assert isinstance(options, RayActorOptionsSchema)
    assert options.resources == resources


@pytest.mark.parametrize(
    ("model", "needed"),
    [
        ({"device": "cpu", "cpus_per_replica": 0.5, "accelerator_type": "A100"}, {"CPU": 0.5}),
        (
            {"accelerator_type": "H100", "tensor_parallel_size": 4, "cpus_per_replica": 2},
            {"CPU": 2, "GPU": 4, "accelerator_type:H100": 0.001},
        ),
        (
            {"accelerator_type": None, "tensor_parallel_size": 2, "resources": {"x2": 1}},
            {"CPU": 1, "GPU": 2, "x2": 1},
        ),
        ({"accelerator_type": None, "pipeline_parallel_size": 3}, {"CPU": 1, "GPU": 3}),
    ],
)
def test_a_replica_needs_cpus_gpus_their_type_and_custom_resources(
    model: dict[str, Any], needed: dict[str, float]
) -> None:
    assert replica_resources(ModelSettings(name="a", **model)) == needed
