"""Turn `MODEL name=value ...` on a command line into a new `user_config`, and print knobs."""

import copy
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel

from serve_app.cli import laboratory
from serve_app.settings.document import parse_yaml
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.settings_error import SettingsError, shown
from serve_app.settings.tree import INGRESS

INGRESS_SCOPE = "ingress"
"""The word that selects the ingress's knobs instead of a model's."""
DEFAULT = "default"
"""The value that removes an override."""

_STARTING_VALUES = "starting_values"
"""The knob whose value may be `@` and the name of a fleet file."""


class _Values(yaml.SafeLoader):
    """YAML without base-60 numbers, which would turn `end: 18:00` into 1080."""


_Values.yaml_implicit_resolvers = {
    first: [
        (tag, re.compile(r"[-+]?(0|[1-9][0-9]*)$") if tag.endswith(":int") else pattern)
        for tag, pattern in resolvers
        if not tag.endswith(":timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_arguments(arguments: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """Split `[MODEL] name=value ...`. Values are YAML; the word `default` stays a string.

    `starting_values=@FILE` reads them from a fleet file, or from a built-in profile by its name.

    Raises:
        SettingsError: with each argument that is not name=value, and with the problems of a fleet file.
    """
    first, *others = arguments
    model, pairs = (None, arguments) if "=" in first else (first, others)
    values: dict[str, Any] = {}
    problems = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        try:
            if not equals or not name:
                problems.append(f"{pair!r}: must be name=value")
            elif name in values:
                problems.append(f"{name}: given twice")
            elif text.startswith("@") and name == _STARTING_VALUES:
                fleet_files = laboratory.load("replay.profile", f"{name}=@FILE")
                values[name] = fleet_files.load_starting_values(text[1:])
            else:
                where = f"{name} = {shown(text)}"
                values[name] = parse_yaml(text, where, _Values, numbered=False).value
        except SettingsError as error:
            problems += error.problems
    if not pairs:
        problems.append("name=value: required, and not given")
    if problems:
        raise SettingsError(problems)
    return model, values


def choose_scope(model: str | None, models: Sequence[str]) -> str:
    """Return the name of the model to change, or `ingress`.

    Raises:
        SettingsError: if there is no such model, or if none is named and there are several.
    """
    known = ", ".join(repr(name) for name in models)
    if model is None:
        if len(models) > 1:
            raise SettingsError([f"MODEL: required, and not given; this application has {known}"])
        return models[0]
    if model != INGRESS_SCOPE and model not in models:
        raise SettingsError(
            [f"MODEL = {model!r}: no such model; this application has {known}, and {INGRESS_SCOPE!r}"]
        )
    return model


def changed(user_config: Mapping[str, Any], scope: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `user_config` with `values` set for `scope`. The value `default` removes a knob.

    Values are not checked.

    Raises:
        SettingsError: for a name that is not a knob.
    """
    names = IngressKnobs.model_fields if scope == INGRESS_SCOPE else Knobs.model_fields
    problems = []
    for name, value in values.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the knobs are {', '.join(names)}"
            problems.append(f"{scope}.{name} = {shown(value)}: no such knob; {hint}")
    if problems:
        raise SettingsError(problems)
    new = copy.deepcopy(dict(user_config))
    section = new if scope == INGRESS_SCOPE else (new.get("autoscaling") or {})
    own = {**(section.get(scope) or {}), **values}
    section[scope] = {name: value for name, value in own.items() if value != DEFAULT}
    if not section[scope]:
        del section[scope]
    if scope != INGRESS_SCOPE:
        new["autoscaling"] = section
        if not section:
            del new["autoscaling"]
    return new


def differences(
    old: tuple[Mapping[str, Knobs], IngressKnobs], new: tuple[Mapping[str, Knobs], IngressKnobs]
) -> list[str]:
    """Return `model.knob: old -> new` for each changed value in force. The ingress comes last."""
    pairs: list[tuple[str, Knobs | IngressKnobs, Knobs | IngressKnobs]]
    pairs = [(model, knobs, new[0][model]) for model, knobs in old[0].items()]
    pairs.append((INGRESS_SCOPE, old[1], new[1]))
    return [
        f"{scope}.{name}: {value_text(getattr(before, name))} -> {value_text(getattr(after, name))}"
        for scope, before, after in pairs
        for name in type(before).model_fields
        if getattr(before, name) != getattr(after, name)
    ]


def knob_table(scope: str, knobs: Knobs | IngressKnobs, defaults: Knobs | IngressKnobs) -> list[str]:
    """Return one line for each knob of `scope`. A star marks a knob that differs from its default."""
    lines = [scope]
    for name in type(knobs).model_fields:
        value, default = getattr(knobs, name), getattr(defaults, name)
        if value == default:
            lines.append(f"    {name:<28}{value_text(value)}")
        else:
            lines.append(f"  * {name:<28}{value_text(value):<14}  default {value_text(default)}")
    return lines


def value_text(value: Any) -> str:
    """Return a knob's value as the configuration would have it."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        value = [item.model_dump(mode="json") for item in value]
    elif isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("...\n").strip()  # YAML's end of a document, after a bare value


def snippet(user_config: Mapping[str, Any]) -> str:
    """Return the YAML that gives an application's ingress this `user_config`."""
    entry = {"deployments": [{"name": INGRESS, "user_config": dict(user_config)}]}
    return yaml.safe_dump(entry, sort_keys=False, default_flow_style=False, width=100)
