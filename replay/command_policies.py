"""From `--policy` and `--knob` on a command line to policies and knobs."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from serve_app.cli.knob_changes import DEFAULT, changed, parse_arguments
from serve_app.settings.knobs import Knobs, overlay
from serve_app.settings.settings_error import SettingsError, from_pydantic

_SCOPE = "knob"


def policies(given: Sequence[str]) -> list[str]:
    """The specifications in `--policy` options: one or, by commas, several each.

    A comma also stands between the settings of one policy: what has `=`, and no colon before that, belongs
    to the specification before it, as in `ray:5,dynamo:itl=0.02,ttft=0.2`.

    Raises:
        SettingsError: for an empty one, or one that is given twice.
    """
    found: list[str] = []
    for text in given:
        own: list[str] = []
        for part in (piece.strip() for piece in text.split(",")):
            if own and "=" in part and ":" not in part.partition("=")[0]:
                own[-1] += f",{part}"
            else:
                own.append(part)
        found += own
    problems = []
    if "" in found:
        problems.append("--policy: a policy is missing between commas, or has no name")
    problems += [
        f"--policy = {spec!r}: given twice" for spec in dict.fromkeys(found) if spec and found.count(spec) > 1
    ]
    if problems:
        raise SettingsError(problems)
    return found


def with_knobs(knobs: Knobs, given: Sequence[str]) -> Knobs:
    """`knobs` with each `name=value` in place.

    Raises:
        SettingsError: naming each that is no knob, no value, or out of its bounds.
    """
    if not given:
        return knobs
    wrong = [f"--knob = {pair!r}: must be name=value" for pair in given if "=" not in pair]
    if wrong:
        raise SettingsError(wrong)
    _, values = parse_arguments(given)
    wrong = [f"{_SCOPE}.{name} = {DEFAULT}: must be a value" for name in values if values[name] == DEFAULT]
    if wrong:
        raise SettingsError(wrong)
    changed({}, _SCOPE, values)
    try:
        return overlay(knobs, values)
    except ValidationError as error:
        raise SettingsError(_problems(error)) from None


def _problems(error: ValidationError) -> list[str]:
    """Each, without all the knobs where they contradict each other."""
    contradictions = [item for item in error.errors(include_url=False) if not item["loc"]]
    if contradictions:
        return [f"{_SCOPE}: {item['msg'].removeprefix('Value error, ')}" for item in contradictions]
    return [f"{_SCOPE}.{line}" for line in from_pydantic(error).problems]
