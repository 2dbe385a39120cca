"""Whether Ray has room for one more replica, and if not, what is missing."""

from __future__ import annotations

from collections.abc import Mapping

from ray._private import state

from serve_app.cluster.ingress_room import Node

_ACCELERATOR = "accelerator_type:"
_BYTES = ("memory", "object_store_memory")
# Ray counts resources in ten-thousandths; what is left after adding fractions is not a shortage.
_SMALLEST = 1e-4


def read_nodes() -> tuple[Node, ...]:
    """The cluster's living nodes. Two calls to Ray's GCS."""
    free = state.available_resources_per_node()
    return tuple(Node(total, free.get(name, {})) for name, total in state.total_resources_per_node().items())


def judge(available: Mapping[str, float], total: Mapping[str, float], needed: Mapping[str, float]) -> str:
    """Why one more replica has no place, or "" if the cluster has what it takes.

    Ray tells sums over the cluster, not what each node has free. So a shortage told here is certain,
    and "" is not a promise: four free GPUs on four nodes do not hold a replica that wants four on one.

    Args:
        available: `ray.available_resources()`: by Ray's names; what is used up is absent.
        total: `ray.cluster_resources()`.
        needed: One replica's resources, by the same names.
    """
    missing = []
    for name in sorted(needed, key=_rank):
        amount, free, most = needed[name], available.get(name, 0.0), total.get(name, 0.0)
        if amount <= 0 or free > amount - _SMALLEST:
            continue
        if name.startswith(_ACCELERATOR):
            kind = name.removeprefix(_ACCELERATOR)
            missing.append(f"no node has {'a free ' if most else 'an accelerator of type '}{kind}")
        elif most < amount - _SMALLEST:
            missing.append(
                f"a replica needs {_amount(name, amount)}, and the cluster has {_plain(name, most)}"
            )
        else:
            missing.append(
                f"no node has {_amount(name, amount)} free "
                f"({_plain(name, free)} of {_plain(name, most)} in the cluster)"
            )
    return "; ".join(missing)


def _rank(name: str) -> tuple[int, str]:
    """What is scarcest first: a missing type of GPU explains a missing GPU."""
    if name.startswith(_ACCELERATOR):
        return 0, name
    return {"GPU": 1, "CPU": 3}.get(name, 2), name


def _amount(name: str, amount: float) -> str:
    return f"{_plain(name, amount)} {name}"


def _plain(name: str, amount: float) -> str:
    return f"{amount / (1 << 30):.3g} GiB" if name in _BYTES else f"{amount:g}"
