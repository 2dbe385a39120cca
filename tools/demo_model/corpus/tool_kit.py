"""What tool scenes are made of: cities, tool definitions and the scene itself."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model.chat import Tool
from tools.demo_model.corpus.draw import capitalised, chance
from tools.demo_model.corpus.small_talk import nonsense

CITIES = (
    """
Paris|London|Rome|Tokyo|Berlin|Madrid|Lisbon|Oslo|Cairo|Lima|Boston|Sydney|Vienna|Dublin|Athens|New York
San Francisco|Zürich|São Paulo|Prague|Seoul|Kyoto|Toronto|Nairobi
""".strip()
    .replace("\n", "|")
    .split("|")
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A question, the call that answers it, what the tool returns and what the model then says."""

    tool: Tool
    question: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    answer: str


def define(rng: Random, names: str, descriptions: str, parameters: dict[str, str]) -> Tool:
    """Return a function tool; parameters map a name to its JSON type."""
    described = chance(rng, 0.4)
    properties = {
        name: {"type": kind} | ({"description": f"The {name.replace('_', ' ')}"} if described else {})
        for name, kind in parameters.items()
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if chance(rng, 0.85):
        schema["required"] = list(parameters)
    function: dict[str, Any] = {"name": rng.choice(names.split())}
    if chance(rng, 0.9):
        function["description"] = rng.choice(descriptions.split("|"))
    return {"type": "function", "function": function | {"parameters": schema}}


def city(rng: Random) -> str:
    """Return a city, which sometimes does not exist."""
    return capitalised(nonsense(rng)) if chance(rng, 0.08) else rng.choice(CITIES)
