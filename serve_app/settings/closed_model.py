"""The base class of all settings and knobs: closed, immutable, strict about numbers. And types of fields."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

_BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "greater than"), Le: ("le", "at most"), Lt: ("lt", "less than")}


class ClosedModel(BaseModel):
    """Refuses unknown keys, numbers that are not finite, and booleans in place of numbers.

    Pydantic would read `true` as 1, so that `min_replicas: true` would mean one replica.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        if (number := _number_expected(cls, info.field_name)) and _has_boolean(value):
            raise ValueError(f"must be {number}, not a boolean")
        return value


@cache
def _number_expected(model: type[BaseModel], field: str) -> str | None:
    """Return the numbers that a field takes, in words; None if it takes none.

    Nested models check their own fields.
    """
    parts = list(_parts(model.model_fields[field]))
    if bool in parts or not (int in parts or float in parts):
        return None
    bounds = dict.fromkeys(
        f"{words} {getattr(part, name)}"
        for part in parts
        for bound, (name, words) in _BOUNDS.items()
        if isinstance(part, bound)
    )
    kind = "a number" if float in parts else "a whole number"
    return ", ".join((kind, " and ".join(bounds))) if bounds else kind


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the types in a field's annotation, and the bounds on them."""
    if isinstance(annotation, FieldInfo):
        yield from _parts(annotation.annotation)
        yield from annotation.metadata
        return
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _has_boolean(value: Any) -> bool:
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, bool) or any(_has_boolean(item) for item in items)


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


def _check_time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("must be a name of the IANA time zone database, such as Europe/Berlin") from None
    return name


TimeZone = Annotated[str, AfterValidator(_check_time_zone)]
