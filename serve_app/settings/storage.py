"""Where a server keeps usage, files and batches: the settings of the ledger and of the Batch API."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from serve_app import env
from serve_app.settings.closed_model import ClosedModel, CustomResources
from serve_app.settings.settings_error import SettingsError

_URL = r"^(sqlite:////[^?#]+|postgres(ql)?://.+)$"


def check_database_url(url: str) -> str:
    """Return `url`. Raises ValueError, without a password, if it is not the URL of a database."""
    if url.startswith(("sqlite:////", "postgresql://", "postgres://")):
        return url
    raise ValueError(
        "must be postgresql://user@host/database, or sqlite:////path of a file, with four slashes"
    )


DatabaseUrl = Annotated[
    str,
    AfterValidator(check_database_url),
    Field(max_length=2048, json_schema_extra={"pattern": _URL}),
]


def url_in_environment(name: str, environment: Mapping[str, str]) -> str | None:
    """Return the URL of a database in an environment variable; None if it is not set.

    Raises:
        SettingsError: it is not a URL of a database. The message does not repeat it.
    """
    if not (given := environment.get(name)):
        return None
    try:
        return check_database_url(given)
    except ValueError as error:
        raise SettingsError([f"{name}: {error}"]) from None


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for what a server keeps, unless settings name another place."""
    folder = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(folder) / "tideserve"


CPU = "cpu"
"""The name in `gpu_hour_prices` for a replica without GPUs, which counts as one device."""


Price = Annotated[float, Field(ge=0, le=1e6)]


class TokenPrices(ClosedModel):
    """The prices of a model's tokens, in USD per million."""

    prompt: Price
    cached: Price | None = None
    """The price of a prompt token that was found in the prefix cache; by default as `prompt`."""
    completion: Price

    def cost(self, prompt: float, cached: float, completion: float) -> float:
        """Return the money for so many tokens. `cached` is a part of `prompt`."""
        of_cached = self.prompt if self.cached is None else self.cached
        return ((prompt - cached) * self.prompt + cached * of_cached + completion * self.completion) / 1e6


class LedgerSettings(ClosedModel):
    """A database of the usage of each API key: tokens, GPU-seconds and money, by the minute."""

    enabled: bool = True
    url: DatabaseUrl | None = None
    """The URL of a Postgres database, or of an SQLite file; by default `~/.local/state/tideserve/usage.db` of
    each node. The environment variable `TIDESERVE_LEDGER_URL` overrides it, for a URL with a password."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """An ISO 4217 code."""
    gpu_hour_prices: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=100)], Price],
        Field(max_length=100),
    ] = Field(default_factory=dict)
    """The price of one GPU for an hour, by `accelerator_type`. `any` is for models whose type is null, and
    `cpu` for replicas without GPUs. Without a price, GPU time costs nothing."""
    usd_per_million_tokens: Annotated[dict[str, TokenPrices], Field(max_length=1000)] = Field(
        default_factory=dict
    )
    """The prices of tokens, by model. Requests for such a model pay for tokens, and not for GPU time."""
    on_database_error: Literal["refuse", "serve"] = "refuse"
    """What happens to requests with a budget while the database does not answer, once the leased money is
    used up."""
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


_FILES_URL = r"^(file:///|(s3|gs|az)://[^/?#]+)[^?#]*$"


def _check_files_url(url: str) -> str:
    if re.match(_FILES_URL, url):
        return url
    raise ValueError("must be file:///path, s3://bucket/folder, gs://bucket/folder or az://container/folder")


class BatchSettings(ClosedModel):
    """Files and batches of OpenAI's Batch API: where they are kept, and how many."""

    enabled: bool = True
    database: DatabaseUrl | None = None
    """The URL of a Postgres database, or of an SQLite file; by default `~/.local/state/tideserve/batch.db` of
    each node. The environment variable `TIDESERVE_BATCH_DATABASE_URL` overrides it, for a URL with a
    password."""
    files: (
        Annotated[
            str,
            AfterValidator(_check_files_url),
            Field(max_length=2048, json_schema_extra={"pattern": _FILES_URL}),
        ]
        | None
    ) = None
    """The URL of a folder, or of an object store: S3, Google Cloud Storage or Azure; by default
    `~/.local/state/tideserve/batch` of each node. Credentials come from the environment, by their usual
    names."""
    max_file_bytes: Annotated[int, Field(ge=1024, le=1 << 40)] = 200 << 20
    """The size of one file."""
    max_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    """The requests of one batch."""
    max_files_per_key: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000
    """Files of one API key. With more, uploads are refused."""
    max_bytes_per_key: Annotated[int, Field(ge=1024)] = 10 << 30
    """Bytes of all files of one API key. With more, uploads and new batches are refused."""
    max_open_batches_per_key: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Batches of one API key that have not ended."""
    retention_days: Annotated[float, Field(ge=0.05, le=3660)] = 30.0
    """Files and ended batches are deleted after this time. A client may choose a shorter time for a file."""
    resources: CustomResources = Field(default_factory=dict)
    """Ray's custom resources that the batch runner takes. They restrict the nodes that it may run on."""

    @property
    def shared(self) -> bool:
        """Whether the settings name a database and an object store that several nodes can share."""
        database, files = self.database or "", self.files or ""
        return database.startswith("postgres") and not files.startswith("file:") and bool(files)


def batch_database_url(settings: BatchSettings, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the database; by default of a file in the user's state folder.

    Raises:
        SettingsError: the URL in the environment is not one. The message does not repeat it.
    """
    given = url_in_environment(env.BATCH_DATABASE_URL, environment)
    return given or settings.database or f"sqlite:///{state_folder(environment)}/batch.db"


def batch_files_url(settings: BatchSettings, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the folder or object store; by default of a folder in the user's state folder."""
    return settings.files or f"file://{state_folder(environment)}/batch"
