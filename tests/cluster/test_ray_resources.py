import pytest

from serve_app.cluster.ray_resources import Node, fitting, room_for_ingress, share_nodes, shortage

ONE_GPU = {"CPU": 1.0, "GPU": 1.0, "accelerator_type:A100": 0.001}
INGRESS = {"CPU": 0.5}
ENGINE = {"CPU": 1.0}
GPU_ENGINE = {"CPU": 1.0, "GPU": 1.0}
PINNED_INGRESS = {"CPU": 0.5, "ingress:replicas": 1.0}
PINNED_ENGINE = {"CPU": 1.0, "GPU": 1.0, "l4:replicas": 1.0}


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


def node(cpus: float, free: float | None = None, **more: float) -> Node:
    """A node with so many CPUs; all of them, and all it has more, free unless told."""
    return Node({"CPU": cpus, **more}, {"CPU": cpus if free is None else free, **more})


@pytest.mark.parametrize(
    ("free", "awaited", "room"),
    [(1.5, [], 3), (1.5, [ENGINE], 1), (1.4, [ENGINE], 0), (2.0, [ENGINE], 2), (2.0, [ENGINE, ENGINE], 0)],
)
def test_room_is_what_is_left_beside_every_engine_replica_that_is_awaited(
    free: float, awaited: list[dict[str, float]], room: int
) -> None:
    assert room_for_ingress([node(4, free)], INGRESS, awaited, 9) == room


def test_a_node_where_an_awaited_replica_would_fit_if_it_were_empty_is_the_engines() -> None:
    """What drains there now is what the engine waits for."""
    assert room_for_ingress([node(2, 0.9)], INGRESS, [ENGINE], 9) == 0


def test_a_node_too_small_for_any_engine_is_free_to_take() -> None:
    assert room_for_ingress([node(2, 0.9), node(0.8)], INGRESS, [ENGINE], 9) == 1


def test_a_node_without_a_gpu_is_no_engines() -> None:
    gpu = Node({"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0})
    assert room_for_ingress([gpu, node(1)], INGRESS, [GPU_ENGINE], 9) == 2


def test_no_more_is_counted_than_asked() -> None:
    assert room_for_ingress([node(64)], INGRESS, [], 3) == 3


def test_fractions_that_do_not_add_up_exactly_are_room() -> None:
    assert room_for_ingress([node(2, 1.7999999999999998 + 0.1)], {"CPU": 0.1}, [{"CPU": 1.8}], 9) == 1


@pytest.mark.parametrize(
    ("nodes", "ingress", "engines", "shared"),
    [
        ([node(2)], INGRESS, [ENGINE], True),
        ([node(2), node(8, GPU=1.0)], INGRESS, [GPU_ENGINE], True),
        ([node(2)], INGRESS, [GPU_ENGINE], False),
        (
            [node(4, **{"ingress:replicas": 1000.0}), node(8, GPU=1.0, **{"l4:replicas": 1.0})],
            PINNED_INGRESS,
            [PINNED_ENGINE],
            False,
        ),
    ],
    ids=["a laptop", "GPU nodes that take an ingress", "no GPU node yet", "groups of the chart"],
)
def test_ingress_and_engines_compete_where_one_node_could_run_either(
    nodes: list[Node], ingress: dict[str, float], engines: list[dict[str, float]], shared: bool
) -> None:
    assert share_nodes(nodes, ingress, engines) is shared


@pytest.mark.parametrize(
    ("total", "need", "times"),
    [
        ({"CPU": 16.0, "GPU": 3.0}, {"CPU": 4.0, "GPU": 1.0}, 3),
        ({"CPU": 7.0, "GPU": 3.0}, {"CPU": 4.0, "GPU": 1.0}, 1),
        ({"CPU": 16.0}, {"CPU": 4.0, "GPU": 1.0}, 0),
        ({"CPU": 100.0}, {"CPU": 1.0}, 4),  # as many as were asked for
        ({"CPU": 2.0}, {"CPU": 0.0}, 4),
        ({"CPU": 0.1 + 0.1 + 0.1 - 1e-9}, {"CPU": 0.1}, 3),
    ],
)
def test_replicas_fit_as_often_as_the_scarcest_resource_lets_them(
    total: dict[str, float], need: dict[str, float], times: int
) -> None:
    assert fitting(total, need, most=4) == times
