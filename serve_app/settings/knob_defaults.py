"""The knobs of each model where its configuration says nothing: the profile's, or the general ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve_app.settings.knob_profiles import KNOBS, read_profile
from serve_app.settings.knobs import Knobs, overlay


def knob_defaults(args: Mapping[str, Any]) -> dict[str, Knobs]:
    """By model name, for the checked `args:` of a configuration.

    Raises:
        SettingsError: if `profile` names none.
    """
    profile = args.get("profile")
    given = read_profile(profile).get(KNOBS, {}) if profile is not None else {}
    defaults = overlay(Knobs(), given)
    return {str(model["name"]): defaults for model in args["models"]}
