import pytest

from serve_app.cluster.ray_resources import room_for_ingress, share_nodes, shortage
from serve_app.wire.resources import Node, fitting

ONE_GPU = {"CPU": 1.0, "GPU": 1.0, "accelerator_type:A100": 0.001}
INGRESS = {"CPU": 0.5}
ENGINE = {"CPU": 1.0}
GPU_ENGINE = {"CPU": 1.0, "GPU": 1.0}
PINNED_INGRESS = {"CPU": 0.5, "ingress:replicas": 1.0}
PINNED_ENGINE = {"CPU": 1.0, "GPU": 1.0, "l4:replicas": 1.0}


GIB = float(1 << 30)


@pytest.mark.parametrize(
    ("free", "total", "needed", "reason"),
    [
        ({"CPU": 8, "GPU": 1, "accelerator_type:A100": 0.999}, {}, ONE_GPU, ""),
        ({}, {}, {"GPU": 0.0}, ""),
        ({"CPU": 0.1 + 0.2 - 1e-9}, {"CPU": 1}, {"CPU": 0.3}, ""),
        # Ray leaves out a resource that is used up.
        (
            {"CPU": 60, "accelerator_type:A100": 0.996},
            {"CPU": 64, "GPU": 4, "accelerator_type:A100": 1},
            ONE_GPU,
            "no node has 1 GPU free (0 of 4 in the cluster)",
        ),
        ({"GPU": 3}, {"GPU": 8}, {"GPU": 4.0}, "no node has 4 GPU free (3 of 8 in the cluster)"),
        ({"GPU": 2}, {"GPU": 2}, {"GPU": 4.0}, "a replica needs 4 GPU, and the cluster has 2"),
        ({"CPU": 8}, {"CPU": 8}, {"GPU": 1.0}, "a replica needs 1 GPU, and the cluster has 0"),
        (
            {"memory": 3.5 * GIB},
            {"memory": 64 * GIB},
            {"memory": 16 * GIB},
            "no node has 16 GiB memory free (3.5 GiB of 64 GiB in the cluster)",
        ),
        # The missing kind of GPU explains the missing GPU.
        (
            {"CPU": 0.5},
            {"CPU": 8, "GPU": 2, "accelerator_type:T4": 1},
            ONE_GPU,
            "no node has an accelerator of type A100; no node has 1 GPU free (0 of 2 in the cluster); "
            "no node has 1 CPU free (0.5 of 8 in the cluster)",
        ),
    ],
)
def test_a_shortage_names_what_the_cluster_lacks(
    free: dict[str, float], total: dict[str, float], needed: dict[str, float], reason: str
) -> None:
    assert shortage(free, total, needed) == reason


def node(cpus: float, free: float | None = None, **more: float) -> Node:
    """A node with so many CPUs; all of them, and all it has more, free unless told."""
    return Node({"CPU": cpus, **more}, {"CPU": cpus if free is None else free, **more})


@pytest.mark.parametrize(
    ("nodes", "awaited", "room"),
    [
        ([node(4, 1.5)], [], 3),
        ([node(4, 1.5)], [ENGINE], 1),
        ([node(4, 1.4)], [ENGINE], 0),
        ([node(4, 2.0)], [ENGINE, ENGINE], 0),
        ([node(2, 0.9)], [ENGINE], 0),  # the engine waits for what drains there
        ([node(2, 0.9), node(0.8)], [ENGINE], 1),  # the second is too small for any engine
        ([Node({"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0}), node(1)], [GPU_ENGINE], 2),
        ([node(64)], [], 9),  # no more than the limit
        ([node(2, 1.7999999999999998 + 0.5)], [{"CPU": 1.8}], 1),
    ],
)
def test_ingress_replicas_fit_beside_the_awaited_engines(
    nodes: list[Node], awaited: list[dict[str, float]], room: int
) -> None:
    assert room_for_ingress(nodes, INGRESS, awaited, 9) == room


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
