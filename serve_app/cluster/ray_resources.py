"""Whether a Ray cluster has room for one more replica, and what is missing if not."""

from __future__ import annotations

from collections.abc import Mapping

from ray._private import state

from serve_app.cluster.ingress_room import Node

_ACCELERATOR = "accelerator_type:"
_BYTES = ("memory", "object_store_memory")
# Ray counts resources in ten-thousandths; a smaller difference is a rounding error.
_SMALLEST = 1e-4


def read_nodes() -> tuple[Node, ...]:
    """Return the cluster's living nodes. Makes two calls to Ray's GCS."""
    free = state.available_resources_per_node()
    return tuple(Node(total, free.get(name, {})) for name, total in state.total_resources_per_node().items())


def shortage(available: Mapping[str, float], total: Mapping[str, float], needed: Mapping[str, float]) -> str:
    """Return why the cluster has no room for one more replica, or "" if it has the resources.

    Ray reports sums over the cluster. So a shortage is certain, but "" is no promise: four free GPUs on four
    nodes have no room for a replica that needs four on one.

    Args:
        available: `ray.available_resources()`, in which a used-up resource is absent.
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
    """Put the scarcest resource first: a missing type of GPU explains a missing GPU."""
    if name.startswith(_ACCELERATOR):
        return 0, name
    return {"GPU": 1, "CPU": 3}.get(name, 2), name


def _amount(name: str, amount: float) -> str:
    return f"{_plain(name, amount)} {name}"


def _plain(name: str, amount: float) -> str:
    return f"{amount / (1 << 30):.3g} GiB" if name in _BYTES else f"{amount:g}"
