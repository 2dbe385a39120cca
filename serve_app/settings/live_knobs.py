"""The knobs in force: the `user_config` of the ingress over the defaults of the configuration."""

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


class LiveKnobs:
    """Holds the knobs of one process; `apply` replaces all of them or none."""

    def __init__(self, defaults: Mapping[str, Knobs]) -> None:
        self._defaults = dict(defaults)
        self._knobs = dict(defaults)
        self.ingress = IngressKnobs()

    def of(self, model: str) -> Knobs:
        """The knobs of `model` at this moment. Callers should not keep them."""
        return self._knobs[model]

    def apply(self, user_config: Mapping[str, Any] | None) -> None:
        """Apply `user_config`. Raises SettingsError, and changes nothing, if it is invalid."""
        self._knobs, self.ingress = read_user_config(self._defaults, user_config)

    def adopt(self, knobs: Mapping[str, Knobs], ingress: IngressKnobs) -> None:
        """Apply knobs that have been checked elsewhere."""
        self._knobs, self.ingress = dict(knobs), ingress

    def document(self) -> dict[str, Any]:
        """All knobs in force, as plain data."""
        return {
            "models": {model: knobs.model_dump(mode="json") for model, knobs in self._knobs.items()},
            "ingress": self.ingress.model_dump(mode="json"),
        }
