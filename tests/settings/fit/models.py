"""Public models: the keys of their `config.json` that matter, the bytes of their weights, and sources."""

import json
from pathlib import Path
from typing import Any, NamedTuple


class PublicModel(NamedTuple):
    name: str
    family: str
    config: dict[str, Any]
    bytes: int
    bytes_from: str
    config_from: str
    recipe: tuple[str, int] | None = None
    """The precision and the least GB of GPU memory in vLLM's recipes (vllm-project/recipes@08008959)."""


def _expanded(config: dict[str, Any]) -> dict[str, Any]:
    """Write out lists, which the file has as runs of equal items."""
    return {
        key: [item for item, count in value["runs"] for _ in range(count)]
        if isinstance(value, dict) and "runs" in value
        else _expanded(value)
        if isinstance(value, dict)
        else value
        for key, value in config.items()
    }


def _read() -> dict[str, PublicModel]:
    entries = json.loads(Path(__file__).with_name("models.json").read_text(encoding="utf-8"))
    return {each["name"]: PublicModel(**{**each, "config": _expanded(each["config"])}) for each in entries}


MODELS = _read()
