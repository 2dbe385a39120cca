"""Whether a Ray cluster has resources for one more engine replica, and for ingress replicas beside it."""

from collections.abc import Iterable, Sequence

from ray._private import state

from serve_app.wire.resources import Node, Resources, add, lacking

_ACCELERATOR = "accelerator_type:"
_BYTES = ("memory", "object_store_memory")


def read_nodes() -> tuple[Node, ...]:
    """Return the cluster's living nodes. Makes two calls to Ray's GCS."""
    free = state.available_resources_per_node()
    total = state.total_resources_per_node()
    return tuple(Node(resources, free.get(name, {}), name) for name, resources in total.items())


def shortage(available: Resources, total: Resources, needed: Resources) -> str:
    """Return why one more replica does not fit into the cluster, or "" if the resources are there.

    Ray reports sums over the cluster. So a shortage is certain, and "" is no promise: a replica that needs
    four GPUs on one node does not fit where four nodes have one free GPU each.
    """
    missing = []
    for name in sorted(lacking(available, needed), key=_rank):
        kind = name.removeprefix(_ACCELERATOR)
        most, amount = _plain(name, total.get(name, 0.0)), f"{_plain(name, needed[name])} {name}"
        if kind != name:
            missing.append(f"no node has {'a free ' if total.get(name) else 'an accelerator of type '}{kind}")
        elif lacking(total, {name: needed[name]}):
            missing.append(f"a replica needs {amount}, and the cluster has {most}")
        else:
            free = _plain(name, available.get(name, 0.0))
            missing.append(f"no node has {amount} free ({free} of {most} in the cluster)")
    return "; ".join(missing)


def share_nodes(nodes: Iterable[Node], ingress: Resources, engines: Sequence[Resources]) -> bool:
    """Return whether an ingress replica and a replica of one of the `engines` could run on the same node."""
    for_ingress = [node for node in nodes if not lacking(node.total, ingress)]
    return any(not lacking(node.total, need) for node in for_ingress for need in engines)


def room_for_ingress(
    nodes: Iterable[Node], ingress: Resources, awaited: Sequence[Resources], most: int
) -> int:
    """Return how many ingress replicas, at most `most`, fit beside every engine replica in `awaited`.

    An awaited replica has no node yet, or may need one at any time. If it fits nowhere now, it reserves each
    node on which it would fit if the node were empty. A replica over several nodes (SPREAD) counts as one
    that needs everything on one node. It reserves nothing where no node is as large.
    """
    open_nodes = [(node, dict(node.free)) for node in nodes]
    for need in sorted(awaited, key=lambda need: -need.get("CPU", 0.0)):
        fitting = next((free for _, free in open_nodes if not lacking(free, need)), None)
        if fitting is not None:
            add(fitting, need, -1)
        else:
            open_nodes = [(node, free) for node, free in open_nodes if lacking(node.total, need)]
    found = 0
    for _, free in open_nodes:
        while found < most and not lacking(free, ingress):
            add(free, ingress, -1)
            found += 1
    return found


def _rank(name: str) -> tuple[int, str]:
    """Put the scarcest resource first: a missing type of GPU explains a missing GPU."""
    return 0 if name.startswith(_ACCELERATOR) else {"GPU": 1, "CPU": 3}.get(name, 2), name


def _plain(name: str, amount: float) -> str:
    return f"{amount / (1 << 30):.3g} GiB" if name in _BYTES else f"{amount:g}"
