"""Read the deployed applications from what Ray's dashboard reports, and build changed configurations."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serve_app.cli.application_checks import IMPORT_PATH, given_user_config
from serve_app.cli.command_error import CommandError
from serve_app.wire.names import INGRESS

_INSTANCE_WIDE = ("proxy_location", "http_options", "grpc_options", "target_capacity")
# What Ray's dashboard reports in place of the value of an environment variable.
_HIDDEN = "<redacted>"
_SETTLED = ("HEALTHY", "UPSCALING", "DOWNSCALING")
_FAILED = ("UNHEALTHY", "DEPLOY_FAILED")


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
    ours = {key: app for key, app in applications.items() if _import_path(app) == IMPORT_PATH}
    if name is None:
        if len(ours) > 1:
            raise CommandError(f"several applications at {address}: give --app, one of {_listed(ours)}")
        if not ours:
            others = f"; there is {_listed(applications)}" if applications else ""
            raise CommandError(f"no Tideserve application is deployed at {address}{others}")
        name = next(iter(ours))
    elif name not in applications:
        there = f"there is {_listed(applications)}" if applications else "nothing is deployed"
        raise CommandError(f"no application {name!r} at {address}: {there}")
    elif not applications[name].get("deployed_app_config"):
        raise CommandError(
            f"application {name!r} was not deployed from a configuration "
            f"({applications[name].get('status')}); its knobs can be changed only after `serve deploy`, "
            "`serve run FILE` or `tideserve run`"
        )
    elif name not in ours:
        raise CommandError(
            f"application {name!r} is not Tideserve's: its import_path is "
            f"{_import_path(applications[name])!r}, not {IMPORT_PATH!r}"
        )
    app = ours[name]
    return Deployed(name, str(app.get("status")), app["deployed_app_config"])


def redeployment(details: Mapping[str, Any], app: str, user_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with `user_config` for the ingress of `app`, and all else as it is deployed.

    Ray takes a configuration as a whole: an application that is left out is deleted, and an option that is
    left out is reset to its default.

    Raises:
        CommandError: if Ray does not report all that would have to be sent back.
    """
    document = {key: details[key] for key in _INSTANCE_WIDE if details.get(key) is not None}
    configs = []
    for name, application in details["applications"].items():
        config = application.get("deployed_app_config")
        if config:
            configs.append(_with_user_config(config, user_config) if name == app else config)
        elif application.get("source") == "declarative" and application.get("status") != "DELETING":
            raise CommandError(
                f"Ray does not report the configuration of application {name!r} and would delete the "
                "application if it were left out; try again in a moment"
            )
    if _HIDDEN in json.dumps(configs):
        raise CommandError(
            f"the dashboard hides the values of environment variables (as {_HIDDEN}); "
            "sending that back would overwrite them"
        )
    return {**document, "applications": configs}


def failed_applications(details: Mapping[str, Any], app: str) -> list[str]:
    """The other applications whose deployment failed: Ray retries them with every configuration."""
    return [
        name
        for name, application in details["applications"].items()
        if name != app
        and application.get("status") == "DEPLOY_FAILED"
        and application.get("deployed_app_config")
    ]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far Ray has applied a change of the ingress's `user_config`."""

    done: bool
    text: str
    failure: str = ""


def progress(
    details: Mapping[str, Any], app: str, user_config: Mapping[str, Any], was_running: bool
) -> Progress:
    """Whether every ingress replica has applied `user_config`.

    Args:
        details: Serve's details, as the dashboard reports them now.
        app: The application's name.
        user_config: The `user_config` that was sent.
        was_running: Whether the application was RUNNING before. If not, its engines may take long to start,
            or may not start at all, and are not waited for.
    """
    application = details["applications"].get(app)
    if application is None:
        return Progress(False, "gone", f"application {app!r} is no longer deployed")
    status = str(application.get("status"))
    config = application.get("deployed_app_config") or {}
    if given_user_config(config.get("deployments") or [])[1] != user_config:
        return Progress(False, status, "another configuration was deployed meanwhile")
    ingress = (application.get("deployments") or {}).get(INGRESS) or {}
    ingress_status = str(ingress.get("status"))
    text = f"{status}, {INGRESS} {ingress_status}"
    if (ingress.get("deployment_config") or {}).get("user_config") != user_config:
        failure = str(application.get("message") or status) if status == "DEPLOY_FAILED" else ""
        return Progress(False, f"{status}, the change has reached Ray", failure)
    if ingress_status in _FAILED:
        return Progress(False, text, f"{INGRESS} is {ingress_status}: {ingress.get('message')}")
    running = status == "RUNNING" or not was_running
    return Progress(ingress_status in _SETTLED and running, text)


def _with_user_config(config: Mapping[str, Any], user_config: Mapping[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(dict(config))
    deployments = changed.setdefault("deployments", [])
    index, _ = given_user_config(deployments)
    if index is None:
        deployments.append({"name": INGRESS, "user_config": dict(user_config)})
    else:
        deployments[index]["user_config"] = dict(user_config)
    return changed


def _import_path(application: Mapping[str, Any]) -> str | None:
    path: str | None = (application.get("deployed_app_config") or {}).get("import_path")
    return path


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in names)
