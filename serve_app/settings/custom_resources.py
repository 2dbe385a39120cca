"""Ray's custom resources: names that a cluster's operator gives its nodes, and how much a replica takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

_LEAST = 1e-4
"""Ray counts resources in ten-thousandths, and refuses less."""
_RAYS_OWN = {
    "CPU": "cpus_per_replica sets it",
    "GPU": "the tensor_parallel_size of a model sets it",
    "memory": "Ray counts it in bytes by itself",
    "object_store_memory": "Ray counts it in bytes by itself",
}
_ACCELERATOR = "accelerator_type:"


def _named(resources: Mapping[str, float]) -> Mapping[str, float]:
    for name, amount in resources.items():
        if not name or not name.isprintable() or name != name.strip():
            raise ValueError(f"the name {name!r} must be printable, without spaces around it, and not empty")
        why = (
            "the accelerator_type of a model sets it"
            if name.startswith(_ACCELERATOR)
            else _RAYS_OWN.get(name)
        )
        if why is not None:
            raise ValueError(f"the name {name!r}, here {amount:g}, is no custom resource's: {why}")
    return resources


CustomResources = Annotated[dict[str, Annotated[float, Field(ge=_LEAST)]], AfterValidator(_named)]
"""Amounts by name, each at least 0.0001; what other settings claim is refused."""
