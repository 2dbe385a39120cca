"""The settings of the ledger."""

import os
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from serve_app import env
from serve_app.settings.closed_model import ClosedModel
from serve_app.settings.database import DatabaseUrl, state_folder, url_in_environment

CPU = "cpu"
"""The name in `gpu_hour_prices` for a replica without GPUs, which counts as one device."""


class LedgerSettings(ClosedModel):
    """A database of the usage of each API key: tokens, GPU-seconds and money, by the minute."""

    enabled: bool = True
    url: DatabaseUrl | None = None
    """The URL of a Postgres database, or of an SQLite file; by default `~/.local/state/tideserve/usage.db` of
    each node. The environment variable `TIDESERVE_LEDGER_URL` overrides it, for a URL with a password."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """An ISO 4217 code."""
    gpu_hour_prices: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=100)], Annotated[float, Field(ge=0, le=1e6)]],
        Field(max_length=100),
    ] = Field(default_factory=dict)
    """The price of one GPU for an hour, by `accelerator_type`. `any` is for models whose type is null, and
    `cpu` for replicas without GPUs. Without a price, GPU time costs nothing."""
    retention_days: Annotated[float, Field(ge=1, le=3660)] = 400.0
    """Older usage is deleted. Usage older than a week is kept by the hour."""

    def gpu_hour_price(self, device: str, accelerator_type: str | None) -> float:
        """Return the price of one device of a model for an hour."""
        return self.gpu_hour_prices.get(CPU if device == "cpu" else accelerator_type or "any", 0.0)


def ledger_url(settings: LedgerSettings, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the ledger's database; by default of a file in the user's state folder.

    Raises:
        SettingsError: the URL in the environment is not one. The message does not repeat it.
    """
    given = url_in_environment(env.LEDGER_URL, environment)
    return given or settings.url or f"sqlite:///{state_folder(environment)}/usage.db"
