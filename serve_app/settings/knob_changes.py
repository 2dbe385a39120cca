"""A change of knobs: the new `user_config` of the ingress, and the values in force that differ. Pure."""

import copy
import difflib
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.settings_error import SettingsError, shown
from serve_app.settings.tree import INGRESS_SCOPE

DEFAULT = "default"
"""The value that removes an override."""


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


def value_text(value: Any) -> str:
    """Return a knob's value as the configuration would have it."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        value = [item.model_dump(mode="json") if isinstance(item, BaseModel) else item for item in value]
    elif isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("...\n").strip()  # YAML's end of a document, after a bare value
