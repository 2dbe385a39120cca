"""The knobs in force in one process."""

from collections.abc import Mapping
from typing import Any

from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.user_config import read_user_config


class LiveKnobs:
    """Holds the knobs of one process; `apply` replaces all of them or none."""

    def __init__(self, defaults: Mapping[str, Knobs]) -> None:
        self._defaults = dict(defaults)
        self._knobs = dict(defaults)
        self.ingress = IngressKnobs()

    def of(self, model: str) -> Knobs:
        """Return the present knobs of `model`. Callers should not keep them."""
        return self._knobs[model]

    def apply(self, user_config: Mapping[str, Any] | None) -> None:
        """Apply `user_config`. Raises SettingsError, and changes nothing, if it is invalid."""
        self._knobs, self.ingress = read_user_config(self._defaults, user_config)

    def adopt(self, knobs: Mapping[str, Knobs], ingress: IngressKnobs) -> None:
        """Apply knobs that another replica has checked."""
        self._knobs, self.ingress = dict(knobs), ingress

    def document(self) -> dict[str, Any]:
        """Return all knobs in force, as plain data."""
        return {
            "models": {model: knobs.model_dump(mode="json") for model, knobs in self._knobs.items()},
            "ingress": self.ingress.model_dump(mode="json"),
        }
