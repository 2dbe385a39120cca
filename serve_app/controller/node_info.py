"""How often Ray Serve's controller asks the GCS for the nodes of the cluster.

Ray's own asks three times in every turn of its control loop, ten turns a second, for what changes when a node
comes or goes.
"""

import time
from collections.abc import Callable

from ray.serve._private.cluster_node_info_cache import ClusterNodeInfoCache

INTERVAL_S = 1.0
"""Of this age the controller may take nodes for alive or not draining, and their resources for free."""


def ask_seldom() -> None:
    """Have every cache of this process ask at most once a second."""
    ClusterNodeInfoCache.update = spaced(ClusterNodeInfoCache.update, INTERVAL_S)


def spaced(
    update: Callable[[ClusterNodeInfoCache], None],
    interval_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[ClusterNodeInfoCache], None]:
    """Return `update`, which does nothing until `interval_s` after it last succeeded for the same cache."""

    def update_if_due(cache: ClusterNodeInfoCache) -> None:
        now = clock()
        if now < getattr(cache, "due_at", now):
            return
        update(cache)
        cache.due_at = now + interval_s

    return update_if_due
