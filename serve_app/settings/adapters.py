"""LoRA adapters of a model: the bounds on them are settings, and the list of them is a knob."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from serve_app.settings.closed_model import ClosedModel

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
