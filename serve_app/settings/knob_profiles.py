"""The latency/cost profiles: settings and knobs that hold where a configuration sets none itself."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

from serve_app.settings.knobs import Knobs, overlay
from serve_app.settings.settings_error import SettingsError, shown

KNOBS = "knobs"
"""The key of a profile's knobs; the rest of a profile is model settings."""
PROFILES = ("lowest-latency", "balanced", "lowest-cost")


def read_profile(name: str) -> dict[str, Any]:
    """Return the profile `name` as written in `serve_app/settings/profiles/<name>.yaml`.

    Raises:
        SettingsError: if there is no such profile.
    """
    if name not in PROFILES:
        raise SettingsError([f"profile = {shown(name)}: must be one of {', '.join(PROFILES)}"])
    text = resources.files("serve_app.settings.profiles").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    profile: dict[str, Any] = yaml.safe_load(text)
    return profile


def apply_profile(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return `args` with the settings of its `profile`, if any, where a model does not set them itself."""
    merged = dict(args)
    name = merged.pop("profile", None)
    models = merged.get("models")
    if name is None or not isinstance(models, list):
        return merged
    profile = read_profile(name)
    profile.pop(KNOBS, None)
    merged["models"] = [_under(model, profile) if isinstance(model, Mapping) else model for model in models]
    return merged


def knob_defaults(args: Mapping[str, Any]) -> dict[str, Knobs]:
    """The knobs that hold where `user_config` sets none, by model name, for checked `args`.

    Raises:
        SettingsError: if `profile` is not the name of a profile.
    """
    profile = args.get("profile")
    given = read_profile(profile).get(KNOBS, {}) if profile is not None else {}
    defaults = overlay(Knobs(), given)
    return {str(model["name"]): defaults for model in args["models"]}


def _under(own: Mapping[str, Any], profile: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(profile)
    for key, value in own.items():
        below = profile.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = _under(value, below) if both and below is not None else value
    return result
