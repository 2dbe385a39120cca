"""Ray's custom resources, by which settings place replicas on nodes."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

_RAYS_OWN_RESOURCES = {
    "CPU": "cpus_per_replica sets it",
    "GPU": "tensor_parallel_size and pipeline_parallel_size of a model set it",
    "accelerator_type:": "the accelerator_type of a model sets it",
    "memory": "Ray counts it in bytes by itself",
    "object_store_memory": "Ray counts it in bytes by itself",
}


def _check_names(resources: Mapping[str, float]) -> Mapping[str, float]:
    for name, amount in resources.items():
        if not name or not name.isprintable() or name != name.strip():
            raise ValueError(f"the name {name!r} must be printable, without spaces around it, and not empty")
        kind = "accelerator_type:" if name.startswith("accelerator_type:") else name
        if why := _RAYS_OWN_RESOURCES.get(kind):
            raise ValueError(f"{name!r} (here {amount:g}) is not a custom resource: {why}")
    return resources


CustomResources = Annotated[dict[str, Annotated[float, Field(ge=1e-4)]], AfterValidator(_check_names)]
"""Amounts by the names that a cluster's operator gives to its nodes. Ray counts in ten-thousandths."""
