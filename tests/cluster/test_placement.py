from __future__ import annotations

import pytest
from ray.serve.schema import DeploymentSchema, RayActorOptionsSchema

from serve_app.cluster.placement import placement, replica_resources
from serve_app.cluster.ray_resources import shortage
from serve_app.settings import ModelSettings


def test_on_a_cpu_a_replica_takes_its_cores_and_nothing_else() -> None:
    model = ModelSettings(name="a", device="cpu", cpus_per_replica=2, accelerator_type="A100")

    assert placement(model) == {"ray_actor_options": {"num_cpus": 2}}


def test_on_one_gpu_the_replica_itself_holds_it() -> None:
    assert placement(ModelSettings(name="a", accelerator_type="H100")) == {
        "ray_actor_options": {"num_cpus": 1, "num_gpus": 1, "accelerator_type": "H100"}
    }


def test_on_any_gpu_no_type_is_asked_for() -> None:
    assert placement(ModelSettings(name="a", accelerator_type=None)) == {
        "ray_actor_options": {"num_cpus": 1, "num_gpus": 1}
    }


def test_on_four_gpus_each_has_a_bundle_and_the_replica_sits_in_the_first() -> None:
    model = ModelSettings(name="a", accelerator_type="A100", tensor_parallel_size=4, cpus_per_replica=3)

    assert placement(model) == {
        "ray_actor_options": {"num_cpus": 3},
        "placement_group_bundles": [
            {"CPU": 3, "GPU": 1, "accelerator_type:A100": 0.001},
            {"GPU": 1, "accelerator_type:A100": 0.001},
            {"GPU": 1, "accelerator_type:A100": 0.001},
            {"GPU": 1, "accelerator_type:A100": 0.001},
        ],
        "placement_group_strategy": "STRICT_PACK",
    }


def test_on_several_gpus_of_any_type_no_sliver_is_asked_for() -> None:
    model = ModelSettings(
        name="a", accelerator_type=None, tensor_parallel_size=2, placement_group_strategy="SPREAD"
    )

    placed = placement(model)
    assert placed["placement_group_bundles"] == [{"CPU": 1, "GPU": 1}, {"GPU": 1}]
    assert placed["placement_group_strategy"] == "SPREAD"


def test_the_replica_fits_in_its_bundle() -> None:
    """Ray starts the replica's actor in bundle 0: what it asks for must be there."""
    placed = placement(ModelSettings(name="a", tensor_parallel_size=2, cpus_per_replica=1.5))

    assert placed["placement_group_bundles"][0]["CPU"] >= placed["ray_actor_options"]["num_cpus"]
    assert "num_gpus" not in placed["ray_actor_options"]


def test_bundles_are_each_their_own() -> None:
    bundles = placement(ModelSettings(name="a", tensor_parallel_size=3))["placement_group_bundles"]

    assert len({id(bundle) for bundle in bundles}) == 3


def test_custom_resources_are_the_replicas_own_on_a_cpu_and_on_one_gpu() -> None:
    on_cpu = placement(ModelSettings(name="a", device="cpu", resources={"spot": 0.5}))
    on_gpu = placement(ModelSettings(name="a", resources={"profile_a100": 1}))

    assert on_cpu == {"ray_actor_options": {"num_cpus": 1, "resources": {"spot": 0.5}}}
    assert on_gpu["ray_actor_options"]["resources"] == {"profile_a100": 1}


def test_custom_resources_of_a_tensor_parallel_replica_are_taken_once_in_its_first_bundle() -> None:
    placed = placement(
        ModelSettings(name="a", accelerator_type=None, tensor_parallel_size=2, resources={"x2": 1})
    )

    assert placed["placement_group_bundles"] == [{"CPU": 1, "GPU": 1, "x2": 1}, {"GPU": 1}]
    assert placed["ray_actor_options"] == {"num_cpus": 1, "resources": {"x2": 1}}


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


def test_on_a_cpu_a_replica_needs_its_cores_of_the_cluster() -> None:
    model = ModelSettings(name="a", device="cpu", cpus_per_replica=0.5, accelerator_type="A100")

    assert replica_resources(model) == {"CPU": 0.5}


def test_on_gpus_it_needs_all_of_them_and_their_type() -> None:
    model = ModelSettings(name="a", accelerator_type="H100", tensor_parallel_size=4, cpus_per_replica=2)

    assert replica_resources(model) == {"CPU": 2, "GPU": 4, "accelerator_type:H100": 0.001}


def test_on_gpus_of_any_type_it_needs_no_type() -> None:
    assert replica_resources(ModelSettings(name="a", accelerator_type=None)) == {"CPU": 1, "GPU": 1}
