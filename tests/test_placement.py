from __future__ import annotations

from serve_app.placement import placement, replica_resources
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


def test_on_a_cpu_a_replica_needs_its_cores_of_the_cluster() -> None:
    model = ModelSettings(name="a", device="cpu", cpus_per_replica=0.5, accelerator_type="A100")

    assert replica_resources(model) == {"CPU": 0.5}


def test_on_gpus_it_needs_all_of_them_and_their_type() -> None:
    model = ModelSettings(name="a", accelerator_type="H100", tensor_parallel_size=4, cpus_per_replica=2)

    assert replica_resources(model) == {"CPU": 2, "GPU": 4, "accelerator_type:H100": 0.001}


def test_on_gpus_of_any_type_it_needs_no_type() -> None:
    assert replica_resources(ModelSettings(name="a", accelerator_type=None)) == {"CPU": 1, "GPU": 1}
