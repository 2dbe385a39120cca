"""The `user_config` of the ingress, read over the default knobs of the configuration."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from serve_app.settings.closed_model import ClosedModel
from serve_app.settings.knobs import IngressKnobs, Knobs, overlay
from serve_app.settings.settings_error import SettingsError, from_pydantic, shown


class LiveSettings(ClosedModel):
    """The `user_config` of the `Ingress` deployment: knobs by model name, and the ingress's own.

    Values that are not given have their defaults.
    """

    autoscaling: dict[str, dict[str, Any]] = Field(default_factory=dict)
    ingress: IngressKnobs = IngressKnobs()


def read_user_config(
    defaults: Mapping[str, Knobs], user_config: Mapping[str, Any] | None
) -> tuple[dict[str, Knobs], IngressKnobs]:
    """Return every model's knobs by name, those given over its `defaults`, and the ingress's own.

    Raises:
        SettingsError: with each invalid key under `user_config`, its value and the bound that it breaks.
    """
    try:
        live = LiveSettings.model_validate(user_config or {})
    except ValidationError as error:
        raise from_pydantic(error) from None
    problems: list[str] = []
    knobs = dict(defaults)
    for model, given in live.autoscaling.items():
        if model not in defaults:
            problems.append(
                f"autoscaling[{shown(model)}]: no such model; this application has "
                + ", ".join(repr(name) for name in defaults)
            )
            continue
        try:
            knobs[model] = overlay(defaults[model], given)
        except ValidationError as error:
            problems += [f"autoscaling[{model!r}].{line}" for line in from_pydantic(error).problems]
    if problems:
        raise SettingsError([line.replace(".(top level)", "") for line in problems])
    return knobs, live.ingress
