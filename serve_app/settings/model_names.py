"""Other names by which clients may ask for a model: its aliases, and its LoRA adapters. Pure."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from serve_app.settings.closed_model import ClosedModel
from serve_app.settings.settings_error import shown

MOST_CHARACTERS = 256
Alias = Annotated[
    str, Field(min_length=1, max_length=MOST_CHARACTERS, pattern=r"^[A-Za-z0-9*?][A-Za-z0-9._:/@+*?-]*$")
]
"""A name, or a pattern in which `*` means any characters and `?` any one character."""
Aliases = Annotated[tuple[Alias, ...], Field(max_length=64)]


def is_pattern(alias: str) -> bool:
    """Return whether an alias has wildcards, so that it means several names."""
    return "*" in alias or "?" in alias


def version_base(name: str, models: Collection[str]) -> str | None:
    """Return the model among `models` of which `name` names a version, as `MODEL@VERSION`; else None."""
    base = name.rpartition("@")[0]
    return base if base in models else None


def model_of(name: str, aliases: Mapping[str, Sequence[str]]) -> str | None:
    """Return the model that has `name` among its `aliases`; None without such a model.

    A name wins over patterns. Of several patterns, the one with the most characters beside wildcards wins,
    and of equal ones that of the first model.
    """
    if len(name) > MOST_CHARACTERS:
        return None
    found = [
        (len(alias.replace("*", "").replace("?", "")) if is_pattern(alias) else MOST_CHARACTERS, model)
        for model, its in aliases.items()
        for alias in its
        if fnmatchcase(name, alias)
    ]
    return max(found, key=lambda match: match[0])[1] if found else None


def name_problems(aliases: Mapping[str, Sequence[str]], adapters: Mapping[str, Iterable[str]]) -> list[str]:
    """Return which names of an application mean two things, one line each.

    Args:
        aliases: The aliases of each model, by the model's name.
        adapters: The names of each model's adapters, by the model's name.
    """
    problems, owners = [], dict.fromkeys(aliases, "a model")
    for model, its in aliases.items():
        names = [(f"aliases[{at}] = {shown(alias)}", alias, "an alias") for at, alias in enumerate(its)]
        names += [(f"adapters[{name!r}]", name, "an adapter") for name in adapters[model]]
        for where, name, kind in names:
            if name in owners:
                problems.append(f"autoscaling[{model!r}].{where}: {owners[name]} has this name already")
            owners.setdefault(name, f"{kind} of {model!r}")
    return problems


EMBEDDED_ADAPTER = "embedded"
"""The source of the demonstration adapter, which belongs to the demonstration model."""
MOST_ADAPTERS = 1000
"""The most adapters of one model, and so the most values of the label `adapter` of a metric."""

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$"
_SOURCE = r"^(/.+|[a-z][a-z0-9+.-]*://.+|(hf:)?[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?|embedded)$"


def _check_source(source: str) -> str:
    if not re.fullmatch(_SOURCE, source):
        raise ValueError(
            "must be the absolute path of a folder, a Hugging Face id such as org/name or "
            "hf:org/name@revision, a URL such as s3://bucket/folder, or embedded"
        )
    return source


AdapterName = Annotated[str, Field(pattern=_NAME, max_length=200)]
AdapterSource = Annotated[
    str, AfterValidator(_check_source), Field(max_length=1000, json_schema_extra={"pattern": _SOURCE})
]
AdapterSources = Annotated[
    dict[AdapterName, AdapterSource],
    Field(max_length=MOST_ADAPTERS, json_schema_extra={"additionalProperties": False}),
]


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter: the name that clients send in `model`, and where its files are."""

    name: str
    source: str


class LoraSettings(ClosedModel):
    """Bounds on the LoRA adapters of one replica. With them, vLLM starts with LoRA."""

    max_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = 16
    """The highest rank of an adapter. vLLM reserves memory for this rank, and has only these values."""
    max_loaded: Annotated[int, Field(ge=1, le=1024)] = 4
    """Adapters in the memory of the GPU: the most that the sequences of one step may use."""
    max_cached: Annotated[int, Field(ge=1, le=MOST_ADAPTERS)] = 16
    """Adapters in the memory of the CPU, including those on the GPU. The least used gives its place."""
    max_bytes: Annotated[int, Field(ge=1 << 20)] = 8 << 30
    """Size of the adapters of one model on the disk of one node. The least recently used are deleted."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_cached < self.max_loaded:
            raise ValueError(
                f"max_cached = {self.max_cached} must be at least max_loaded = {self.max_loaded}: adapters "
                "on the GPU are cached too"
            )
        return self
