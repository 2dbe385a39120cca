"""Settings errors that name the key, the value given and the bound it breaks."""

from collections.abc import Sequence
from typing import Any, Self

from pydantic import ValidationError

_SHOWN = 120  # characters of an offending value worth repeating


class SettingsError(ValueError):
    """A configuration that must not be deployed, with one line per problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("invalid settings:\n" + "\n".join(f"  - {line}" for line in self.problems))

    def __reduce__(self) -> tuple[type[Self], tuple[list[str]]]:
        """Ray pickles it. By default an exception is rebuilt from its text, not from its problems."""
        return type(self), (self.problems,)


def dotted(location: Sequence[int | str]) -> str:
    """Return `("models", 0, "dtype")` as `models[0].dtype`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or "(top level)"


def shown(value: Any) -> str:
    """Return the `repr` of a value, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def from_pydantic(error: ValidationError) -> SettingsError:
    """Return every problem that pydantic found, as `key = value: the allowed values`."""
    return SettingsError([problem for _, problem in located(error)])


def located(
    error: ValidationError, tags: frozenset[str] = frozenset()
) -> list[tuple[tuple[int | str, ...], str]]:
    """Return every problem that pydantic found, with its location in the document.

    `tags` are words of tagged unions, which pydantic adds to locations and which are not in the document.
    """
    problems = []
    items = error.errors(include_url=False)
    locations = [item["loc"] for item in items]
    for item in items:
        below = len(item["loc"])
        if item["type"] == "too_short" and any(loc[:below] == item["loc"] != loc for loc in locations):
            continue  # pydantic counts only valid entries, and reports the others separately
        location = tuple(part for part in item["loc"] if part not in tags)
        key = dotted(location)
        if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):  # of a model, of a dataclass
            problem = f"{key} = {shown(item['input'])}: no such setting"
        elif item["type"] == "missing":
            problem = f"{key}: required, and not given"
        else:
            message = item["msg"].removeprefix("Value error, ")
            problem = f"{key} = {shown(item['input'])}: {message[0].lower()}{message[1:]}"
        problems.append((location, problem))
    return problems
