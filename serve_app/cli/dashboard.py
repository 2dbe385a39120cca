"""Reads and changes Tideserve's applications through Ray's dashboard, the API behind `serve deploy`."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from serve_app import env
from serve_app.cli import CommandError
from serve_app.cli.application_checks import IMPORT_PATH
from serve_app.cli.http_client import NoAnswerError, error_words, fetch
from serve_app.cli.ray_token import token_header
from serve_app.cluster.knob_changes import deployed_config, given_user_config
from serve_app.settings.tree import INGRESS

DEFAULT_ADDRESS = "http://127.0.0.1:8265"

# Ray's controller answers in milliseconds, on a busy head node in seconds.
_TIMEOUT_S = 30.0


def default_address() -> str:
    """Return the dashboard's URL as Ray's own commands do: `RAY_DASHBOARD_ADDRESS`, or this machine's."""
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
        """Return Ray Serve's options and applications. Raises CommandError if no dashboard answers."""
        body = self._ask(None)
        try:
            details = json.loads(body)
        except (ValueError, RecursionError):
            details = None
        if not isinstance(details, dict) or not isinstance(details.get("applications"), dict):
            raise CommandError(
                f"{self.address} answers, but not as Ray's dashboard does: {error_words(body)}"
            )
        return details

    def deploy(self, document: dict[str, Any]) -> None:
        """Have Ray Serve apply a configuration. Applications that it leaves out are deleted.

        Raises CommandError if no dashboard answers, or if Ray refuses the configuration.
        """
        self._ask(json.dumps(document).encode())

    def _ask(self, body: bytes | None) -> bytes:
        url = f"{self.address}/api/serve/applications/"
        headers = {"Content-Type": "application/json", **token_header(self.address)}
        try:
            reply = fetch(url, headers, self._timeout_s, body=body)
        except NoAnswerError as error:
            raise CommandError(
                f"no Ray dashboard at {self.address}: {error}; give --address or set {env.DASHBOARD_ADDRESS}"
            ) from None
        if reply.status in (401, 403):
            raise CommandError(
                f"{self.address} requires its cluster's token ({reply.status} {reply.reason}); set "
                f"{env.AUTH_TOKEN}, or {env.AUTH_TOKEN_PATH} to the file that holds it"
            )
        if reply.status >= 300:
            words = error_words(reply.body)
            raise CommandError(f"{self.address} answers {reply.status} {reply.reason}: {words}")
        return reply.body


@dataclass(frozen=True, slots=True)
class Deployed:
    """A deployed Tideserve application."""

    name: str
    status: str
    config: Mapping[str, Any]
    """Its entry of `applications`, as it was submitted."""

    @property
    def user_config(self) -> dict[str, Any]:
        """The `user_config` of its ingress, which holds the knobs that were set."""
        return given_user_config(self.config.get("deployments") or [])[1]


def choose(details: Mapping[str, Any], name: str | None, address: str) -> Deployed:
    """Return the application called `name`, or the only Tideserve application.

    Raises:
        CommandError: if there is none, if it is not Tideserve's, or if there are several and `name` is None.
    """
    applications: Mapping[str, Mapping[str, Any]] = details["applications"]
    ours = [
        key for key, app in applications.items() if deployed_config(app).get("import_path") == IMPORT_PATH
    ]
    there = f"there is {_list_names(applications)}" if applications else "nothing is deployed"
    if name is None:
        if len(ours) > 1:
            raise CommandError(f"several applications at {address}: give --app, one of {_list_names(ours)}")
        if not ours:
            others = f"; {there}" if applications else ""
            raise CommandError(f"no Tideserve application is deployed at {address}{others}")
        name = ours[0]
    elif name not in applications:
        raise CommandError(f"no application {name!r} at {address}: {there}")
    app = applications[name]
    if not deployed_config(app):
        raise CommandError(
            f"application {name!r} was not deployed from a configuration ({app.get('status')}); its knobs "
            "can be changed only after `serve deploy`, `serve run FILE` or `tideserve run`"
        )
    if name not in ours:
        found = deployed_config(app).get("import_path")
        raise CommandError(
            f"application {name!r} is not Tideserve's: its import_path is {found!r}, not {IMPORT_PATH!r}"
        )
    return Deployed(name, str(app.get("status")), deployed_config(app))


@dataclass(frozen=True, slots=True)
class Rollout:
    """How far Ray has applied a change of the ingress's `user_config`."""

    done: bool
    text: str
    failure: str = ""


def rollout(
    details: Mapping[str, Any], app: str, user_config: Mapping[str, Any], was_running: bool
) -> Rollout:
    """Return whether every ingress replica of `app` has applied `user_config`, according to `details`.

    If `was_running` is false, the application need not be RUNNING: its engines may take long to start, or
    may fail to start.
    """
    application = details["applications"].get(app)
    if application is None:
        return Rollout(False, "gone", f"application {app!r} is no longer deployed")
    status = str(application.get("status"))
    if given_user_config(deployed_config(application).get("deployments") or [])[1] != user_config:
        return Rollout(False, status, "another configuration was deployed meanwhile")
    ingress = (application.get("deployments") or {}).get(INGRESS) or {}
    ingress_status = str(ingress.get("status"))
    text = f"{status}, {INGRESS} {ingress_status}"
    if (ingress.get("deployment_config") or {}).get("user_config") != user_config:
        failure = str(application.get("message") or status) if status == "DEPLOY_FAILED" else ""
        return Rollout(False, f"{status}, the change has reached Ray", failure)
    if ingress_status in ("UNHEALTHY", "DEPLOY_FAILED"):
        return Rollout(False, text, f"{INGRESS} is {ingress_status}: {ingress.get('message')}")
    settled = ingress_status in ("HEALTHY", "UPSCALING", "DOWNSCALING")
    return Rollout(settled and (status == "RUNNING" or not was_running), text)


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
