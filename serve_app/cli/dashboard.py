"""The REST API of Ray's dashboard with which `serve deploy` and `serve config` work."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from serve_app import env
from serve_app.cli.command_error import CommandError
from serve_app.cli.ray_token import token_header

DEFAULT_ADDRESS = "http://127.0.0.1:8265"

_APPLICATIONS = "/api/serve/applications/"
# Ray's controller answers in milliseconds; a busy head node has been seen to take seconds.
_TIMEOUT_S = 30.0
_SHOWN = 300
_UNAUTHORIZED = (401, 403)


def default_address() -> str:
    """The URL that Ray's own commands use: that of `RAY_DASHBOARD_ADDRESS`, or one of this machine."""
    return os.environ.get(env.DASHBOARD_ADDRESS) or DEFAULT_ADDRESS


class Dashboard:
    """The dashboard of one Ray cluster."""

    def __init__(self, address: str, timeout_s: float = _TIMEOUT_S) -> None:
        if urlsplit(address).scheme not in ("http", "https"):
            raise CommandError(
                f"--address = {address!r}: must be the URL of the dashboard, such as {DEFAULT_ADDRESS}"
            )
        self.address = address.rstrip("/")
        self._timeout_s = timeout_s

    def details(self) -> dict[str, Any]:
        """Return Ray Serve's options, and every application with its configuration.

        Raises:
            CommandError: if no server answers there, or one that is not Ray's dashboard.
        """
        text = self._ask("GET", None)
        try:
            details = json.loads(text)
        except ValueError:
            details = None
        if not isinstance(details, dict) or not isinstance(details.get("applications"), dict):
            raise CommandError(f"{self.address} answers, but not as Ray's dashboard does: {_cut(text)}")
        return details

    def deploy(self, document: dict[str, Any]) -> None:
        """Have Ray Serve apply a configuration. Applications that it leaves out are deleted.

        Raises:
            CommandError: as above, or if Ray refuses the configuration.
        """
        self._ask("PUT", json.dumps(document).encode())

    def _ask(self, method: str, body: bytes | None) -> str:
        request = urllib.request.Request(  # noqa: S310 - the scheme has been checked
            self.address + _APPLICATIONS,
            data=body,
            method=method,
            headers={"Content-Type": "application/json", **token_header(self.address)},
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:  # noqa: S310
                return str(reply.read().decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            with error:
                text = _cut(error.read().decode("utf-8", "replace"))
            if error.code in _UNAUTHORIZED:
                raise CommandError(
                    f"{self.address} requires its cluster's token ({error.code} {error.reason}); set "
                    f"{env.AUTH_TOKEN}, or {env.AUTH_TOKEN_PATH} to the file that holds it"
                ) from None
            raise CommandError(f"{self.address} answers {error.code} {error.reason}: {text}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise CommandError(
                f"no Ray dashboard at {self.address}: {reason}; give --address or set {env.DASHBOARD_ADDRESS}"
            ) from None


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "…"
