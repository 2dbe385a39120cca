from typing import Any

import pytest
from ray.serve.schema import DeploymentSchema, RayActorOptionsSchema

from serve_app.cluster.placement import placement, replica_resources
from serve_app.cluster.ray_resources import shortage
from serve_app.settings import ModelSettings


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ({"device": "cpu", "cpus_per_replica": 2, "accelerator_type": "A100"}, {"num_cpus": 2}),
        ({"device": "cpu", "resources": {"spot": 0.5}}, {"num_cpus": 1, "resources": {"spot": 0.5}}),
        ({"accelerator_type": "H100"}, {"num_cpus": 1, "num_gpus": 1, "accelerator_type": "H100"}),
        ({"accelerator_type": None}, {"num_cpus": 1, "num_gpus": 1}),
        (
            {"accelerator_type": None, "resources": {"x1": 1}},
            {"num_cpus": 1, "num_gpus": 1, "resources": {"x1": 1}},
        ),
    ],
)
def test_on_a_cpu_and_on_one_gpu_the_replica_itself_holds_all(
    model: dict[str, Any], options: dict[str, Any]
) -> None:
    assert placement(ModelSettings(name="a", **model)) == {"ray_actor_options": options}


def test_on_four_gpus_each_has_a_bundle_of_its_own_and_the_replica_sits_in_the_first() -> None:
    """Ray starts the replica's actor in bundle 0: what it asks for must be there."""
    model = ModelSettings(
        name="a", accelerator_type="A100", tensor_parallel_size=4, cpus_per_replica=3, resources={"x4": 1}
    )

    placed = placement(model)

    other = {"GPU": 1, "accelerator_type:A100": 0.001}
    assert placed == {
        "ray_actor_options": {"num_cpus": 3, "resources": {"x4": 1}},
        "placement_group_bundles": [{"CPU": 3, "x4": 1, **other}, other, other, other],
        "placement_group_strategy": "STRICT_PACK",
    }
    assert len({id(bundle) for bundle in placed["placement_group_bundles"]}) == 4


def test_on_several_gpus_of_any_type_no_sliver_is_asked_for() -> None:
    placed = placement(
        ModelSettings(
            name="a", accelerator_type=None, tensor_parallel_size=2, placement_group_strategy="SPREAD"
        )
    )

    assert placed["placement_group_bundles"] == [{"CPU": 1, "GPU": 1}, {"GPU": 1}]
    assert placed["placement_group_strategy"] == "SPREAD"


@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_rays_own_schema_takes_custom_resources(tensor_parallel_size: int) -> None:
    model = ModelSettings(name="a", tensor_parallel_size=tensor_parallel_size, resources={"tide": 0.001})

    schema = DeploymentSchema(name="Engine-a", **placement(model))

    options = schema.ray_actor_options
    assert isinstance(options, RayActorOptionsSchema)
    assert options.resources == {"tide": 0.001}


def test_custom_resources_are_among_what_a_replica_needs_of_the_cluster() -> None:
    """So that a pending replica can say which of them is missing."""
    model = ModelSettings(name="a", accelerator_type=None, tensor_parallel_size=2, resources={"x2": 1})

    needed = replica_resources(model)

    assert needed == {"CPU": 1, "GPU": 2, "x2": 1}
    cluster = {"CPU": 8.0, "GPU": 8.0}
    assert shortage(cluster, cluster, needed) == "a replica needs 1 x2, and the cluster has 0"


@pytest.mark.parametrize(
    ("model", "needed"),
    [
        ({"device": "cpu", "cpus_per_replica": 0.5, "accelerator_type": "A100"}, {"CPU": 0.5}),
        (
            {"accelerator_type": "H100", "tensor_parallel_size": 4, "cpus_per_replica": 2},
            {"CPU": 2, "GPU": 4, "accelerator_type:H100": 0.001},
        ),
        ({"accelerator_type": None}, {"CPU": 1, "GPU": 1}),
    ],
)
def test_a_replica_needs_its_cores_all_its_gpus_and_their_type_of_the_cluster(
    model: dict[str, Any], needed: dict[str, float]
) -> None:
    assert replica_resources(ModelSettings(name="a", **model)) == needed
