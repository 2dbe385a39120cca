"""Settings that name a database, and the folder of what the server keeps by default."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

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
