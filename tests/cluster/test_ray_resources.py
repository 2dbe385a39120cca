from __future__ import annotations

from serve_app.cluster.ray_resources import shortage

ONE_GPU = {"CPU": 1.0, "GPU": 1.0, "accelerator_type:A100": 0.001}


def test_what_fits_needs_no_reason() -> None:
    free = {"CPU": 8.0, "GPU": 1.0, "accelerator_type:A100": 0.999}

    assert shortage(free, free, ONE_GPU) == ""


def test_a_cluster_whose_gpus_are_all_in_use_is_told_with_their_number() -> None:
    total = {"CPU": 64.0, "GPU": 4.0, "accelerator_type:A100": 1.0}
    available = {"CPU": 60.0, "accelerator_type:A100": 0.996}  # Ray leaves out what is used up

    assert shortage(available, total, ONE_GPU) == "no node has 1 GPU free (0 of 4 in the cluster)"


def test_too_few_free_gpus_for_a_tensor_parallel_replica() -> None:
    total = {"CPU": 64.0, "GPU": 8.0, "accelerator_type:A100": 1.0}
    available = {"CPU": 60.0, "GPU": 3.0, "accelerator_type:A100": 0.995}

    reason = shortage(available, total, {"GPU": 4.0, "accelerator_type:A100": 0.004})

    assert reason == "no node has 4 GPU free (3 of 8 in the cluster)"


def test_a_cluster_that_could_never_hold_a_replica_says_so() -> None:
    assert (
        shortage({"GPU": 2.0}, {"GPU": 2.0}, {"GPU": 4.0}) == "a replica needs 4 GPU, and the cluster has 2"
    )
    assert (
        shortage({"CPU": 8.0}, {"CPU": 8.0}, {"GPU": 1.0}) == "a replica needs 1 GPU, and the cluster has 0"
    )


def test_the_missing_kind_of_gpu_comes_before_the_missing_gpu() -> None:
    everything = {"CPU": 8.0, "GPU": 2.0, "accelerator_type:T4": 1.0}

    reason = shortage({"CPU": 0.5}, everything, ONE_GPU)

    assert reason.split("; ") == [
        "no node has an accelerator of type A100",
        "no node has 1 GPU free (0 of 2 in the cluster)",
        "no node has 1 CPU free (0.5 of 8 in the cluster)",
    ]


def test_memory_is_told_in_gibibytes() -> None:
    gib = float(1 << 30)

    reason = shortage({"memory": 3.5 * gib}, {"memory": 64 * gib}, {"memory": 16 * gib})

    assert reason == "no node has 16 GiB memory free (3.5 GiB of 64 GiB in the cluster)"


def test_the_dust_of_fractions_is_no_shortage() -> None:
    assert shortage({"CPU": 0.1 + 0.2 - 1e-9}, {"CPU": 1.0}, {"CPU": 0.3}) == ""


def test_what_is_not_needed_is_not_missed() -> None:
    assert shortage({}, {}, {"GPU": 0.0}) == ""
