"""A stand-in for the engine deployment where there is no GPU: it only says where Ray put it."""

from typing import Any

import ray
from ray.util import get_current_placement_group
from ray.util.placement_group import placement_group_table


class FakeGpuEngine:
    """Placed as `Engine` would be; holds no engine and claims no real GPU."""

    def __init__(self, model: dict[str, Any], *settings: Any, **more: Any) -> None:
        self._model = model

    def where(self) -> dict[str, Any]:
        """The resources Ray gave this replica, and the bundles of its placement group."""
        context = ray.get_runtime_context()
        group = get_current_placement_group()
        table = placement_group_table(group) if group is not None else None
        return {
            "assigned": context.get_assigned_resources(),
            "gpu_ids": context.get_accelerator_ids()["GPU"],
            "bundles": list(table["bundles"].values()) if table is not None else None,
            "strategy": table["strategy"] if table is not None else None,
        }
