"""The latency/cost profiles: overlays of model settings, under whatever a configuration sets itself."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

from serve_app.settings.settings_error import SettingsError, shown

KNOBS = "knobs"
"""The part of a profile that is knobs, for `knob_defaults`; the rest is model settings."""
PROFILES = ("lowest-latency", "balanced", "lowest-cost")


def read_profile(name: str) -> dict[str, Any]:
    """The overlay `name`, as written in `serve_app/settings/profiles/<name>.yaml`.

    Raises:
        SettingsError: if there is no such profile.
    """
    if name not in PROFILES:
        raise SettingsError([f"profile = {shown(name)}: must be one of {', '.join(PROFILES)}"])
    text = resources.files("serve_app.settings.profiles").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    overlay: dict[str, Any] = yaml.safe_load(text)
    return overlay


def apply_profile(args: Mapping[str, Any]) -> dict[str, Any]:
    """`args` with its `profile`, if any, laid under every model. What a model sets itself wins."""
    merged = dict(args)
    name = merged.pop("profile", None)
    models = merged.get("models")
    if name is None or not isinstance(models, list):
        return merged
    overlay = read_profile(name)
    overlay.pop(KNOBS, None)
    merged["models"] = [_under(model, overlay) if isinstance(model, Mapping) else model for model in models]
    return merged


def _under(own: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(overlay)
    for key, value in own.items():
        below = overlay.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = _under(value, below) if both and below is not None else value
    return result
