"""Aliases: other names by which clients may ask for a model, such as `gpt-4o` or `claude-*`. Pure."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field

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


def alias_problems(aliases: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what is wrong with the aliases of all models of an application, one line each."""
    problems: list[str] = []
    owners: dict[str, str] = {}
    for model, its in aliases.items():
        for index, alias in enumerate(its):
            at = f"autoscaling[{model!r}].aliases[{index}] = {shown(alias)}"
            if alias in aliases:
                problems.append(f"{at}: is the name of a model")
            elif alias in owners:
                problems.append(f"{at}: model {owners[alias]!r} has this alias already")
            owners.setdefault(alias, model)
    return problems
