"""Aliases: other names by which clients may ask for a model, such as `gpt-4o` or `claude-*`. Pure."""

from collections.abc import Iterable, Mapping, Sequence
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
