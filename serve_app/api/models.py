"""The models that an application serves, and which of them a request is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from serve_app.api.engine_client import EngineClient
from serve_app.api.errors import ApiError
from serve_app.api.traffic import Traffic


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model: its public name, and when this process began to serve it (Unix time)."""

    name: str
    created: int
    engine: EngineClient
    """Runs its requests."""
    max_model_len: int | None = None
    traffic: Traffic = field(default_factory=Traffic)
    """Is told what becomes of its requests."""

    def card(self) -> dict[str, str | int | None]:
        """The model's entry in `/v1/models`."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "tideserve",
            "max_model_len": self.max_model_len,
        }


class ModelDirectory:
    """Looks models up by name."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = {model.name: model for model in models}

    def all(self) -> list[ServedModel]:
        """Every model, in the order of the configuration."""
        return list(self._models.values())

    def find(self, name: str | None) -> ServedModel:
        """The model called `name`; the only model, if none is named.

        Raises:
            ApiError: 404 for an unknown name, 400 where a name is needed.
        """
        if name is None:
            if len(self._models) == 1:
                return next(iter(self._models.values()))
            raise ApiError(
                400, f"model: required; this server has {self._names()}.", param="model", code="missing_field"
            )
        model = self._models.get(name)
        if model is None:
            raise ApiError(
                404,
                f"model = {name[:200]!r}: does not exist; this server has {self._names()}.",
                param="model",
                code="model_not_found",
            )
        return model

    def first(self) -> ServedModel:
        """The first model of the configuration."""
        return next(iter(self._models.values()))

    def _names(self) -> str:
        return ", ".join(repr(name) for name in self._models)
