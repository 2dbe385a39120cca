"""Turn the `args:` of a configuration file into a checked settings tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from serve_app.settings.engine_arguments import check_engine_args
from serve_app.settings.knob_profiles import apply_profile
from serve_app.settings.settings_error import SettingsError, from_pydantic, shown
from serve_app.settings.tree import AppSettings


def load_settings(args: Mapping[str, Any] | None) -> AppSettings:
    """Check `args` and return the tree.

    Raises:
        SettingsError: with each invalid key, its value and the bound that it breaks.
    """
    if not isinstance(args, Mapping):
        raise SettingsError([f"args = {shown(args)}: must be a mapping with at least `models`"])
    try:
        settings = AppSettings.model_validate(apply_profile(args))
    except ValidationError as error:
        raise from_pydantic(error) from None
    problems = [
        problem
        for index, model in enumerate(settings.models)
        for problem in check_engine_args(f"models[{index}].engine_args", model)
    ]
    if problems:
        raise SettingsError(problems)
    return settings
