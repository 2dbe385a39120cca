"""The API key that commands send to a server."""

from __future__ import annotations

import os
from collections.abc import Mapping

from serve_app import env
from serve_app.settings.settings_error import SettingsError


def authorization(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the header with the key of the environment, or no header if there is no key.

    Raises:
        SettingsError: for a key that a header cannot contain. The message does not repeat the key.
    """
    key = environment.get(env.API_KEY, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise SettingsError([f"{env.API_KEY}: must be on one line of printable ASCII without spaces"])
    return {"Authorization": f"Bearer {key}"} if key else {}
