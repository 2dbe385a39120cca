"""A change of knobs: the values in force that differ, and the configuration that puts it in force."""

import copy
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel

from serve_app.settings.knobs import IngressKnobs, Knobs, LiveKnobs
from serve_app.settings.settings_error import SettingsError, shown
from serve_app.settings.tree import INGRESS, INGRESS_SCOPE

DEFAULT = "default"
"""The value that removes an override."""


def changed(user_config: Mapping[str, Any], scope: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `user_config` with `values` set for `scope`. The value `default` removes a knob.

    Values are not checked.

    Raises:
        SettingsError: for a name that is not a knob.
    """
    names = IngressKnobs.model_fields if scope == INGRESS_SCOPE else Knobs.model_fields
    problems = []
    for name, value in values.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the knobs are {', '.join(names)}"
            problems.append(f"{scope}.{name} = {shown(value)}: no such knob; {hint}")
    if problems:
        raise SettingsError(problems)
    new = copy.deepcopy(dict(user_config))
    section = new if scope == INGRESS_SCOPE else (new.get("autoscaling") or {})
    own = {**(section.get(scope) or {}), **values}
    section[scope] = {name: value for name, value in own.items() if value != DEFAULT}
    if not section[scope]:
        del section[scope]
    if scope != INGRESS_SCOPE:
        new["autoscaling"] = section
        if not section:
            del new["autoscaling"]
    return new


def differences(
    old: tuple[Mapping[str, Knobs], IngressKnobs], new: tuple[Mapping[str, Knobs], IngressKnobs]
) -> list[str]:
    """Return `model.knob: old -> new` for each changed value in force. The ingress comes last."""
    pairs: list[tuple[str, Knobs | IngressKnobs, Knobs | IngressKnobs]]
    pairs = [(model, knobs, new[0][model]) for model, knobs in old[0].items()]
    pairs.append((INGRESS_SCOPE, old[1], new[1]))
    return [
        f"{scope}.{name}: {value_text(getattr(before, name))} -> {value_text(getattr(after, name))}"
        for scope, before, after in pairs
        for name in type(before).model_fields
        if getattr(before, name) != getattr(after, name)
    ]


def value_text(value: Any) -> str:
    """Return a knob's value as the configuration would have it."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        value = [item.model_dump(mode="json") if isinstance(item, BaseModel) else item for item in value]
    elif isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("...\n").strip()  # YAML's end of a document, after a bare value


_INSTANCE_WIDE = ("proxy_location", "http_options", "grpc_options", "target_capacity")
# Ray's dashboard reports this in place of the value of an environment variable.
_HIDDEN = "<redacted>"


class RedeploymentError(Exception):
    """Ray does not report all of the configuration that a change would have to repeat."""


@dataclass(frozen=True, slots=True)
class KnobRedeployment:
    """A change of knobs, as the configuration that puts it in force."""

    document: dict[str, Any]
    """The configuration for Ray Serve."""
    user_config: dict[str, Any]
    """The ingress's part of it."""
    is_deployed: bool
    """Whether this `user_config` is deployed already."""
    knobs: tuple[dict[str, Knobs], IngressKnobs]
    """The knobs of this `user_config`."""
    changes: list[str]
    """The changes of the values in force, in words."""
    replaced: dict[str, Any]
    """All of Ray Serve's configuration that it replaces."""


def knob_redeployment(
    details: Mapping[str, Any], app: str, scope: str, values: Mapping[str, Any], live: LiveKnobs
) -> KnobRedeployment:
    """Return the change of `scope`'s knobs to `values`, for Ray Serve's `details` and the knobs in force.

    The deployed knobs are not checked: they may have been rejected, and the change may repair them.

    Raises:
        SettingsError: the new knobs are invalid.
        RedeploymentError: Ray does not report the whole configuration.
    """
    old = given_user_config(deployed_config(details["applications"].get(app, {})).get("deployments") or [])[1]
    new = changed(old, scope, values)
    knobs = live.read(new)
    changes = differences(live.in_force, knobs)
    document = redeployment(details, app, new)
    return KnobRedeployment(document, new, new == old, knobs, changes, deployed(details))


def deploy(controller: Any, change: KnobRedeployment) -> bool:
    """Deploy a change, unless another deploy has come since the configuration was read.

    Ray Serve's controller runs this in its event loop (`__ray_call__`), so nothing comes between.

    Returns:
        Whether it was deployed.
    """
    from ray.serve.schema import ServeDeploySchema  # noqa: PLC0415 the command line loads no Ray

    unchanged = deployed(controller.get_serve_instance_details()) == change.replaced
    if unchanged:
        controller.apply_config(ServeDeploySchema.model_validate(change.document))
    return unchanged


def redeployment(details: Mapping[str, Any], app: str, user_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the deployed configuration with a new `user_config` for the ingress of `app`.

    Ray replaces the whole configuration: a missing application is deleted, and a missing option is reset to
    its default.

    Raises:
        RedeploymentError: Ray does not report the whole configuration.
    """
    document = {key: details[key] for key in _INSTANCE_WIDE if details.get(key) is not None}
    configs = []
    for name, application in details["applications"].items():
        if config := deployed_config(application):
            configs.append(_with_user_config(config, user_config) if name == app else config)
        elif application.get("source") == "declarative" and application.get("status") != "DELETING":
            raise RedeploymentError(
                f"Ray does not report the configuration of application {name!r}, so a change would delete "
                "the application; try again in a moment"
            )
    if app not in (names := [config["name"] for config in configs]):
        raise RedeploymentError(f"Ray Serve has no application {app!r} with a configuration, only {names}")
    if _HIDDEN in json.dumps(configs):
        raise RedeploymentError(
            f"the dashboard hides the values of environment variables (as {_HIDDEN}), "
            "so a change would overwrite these values"
        )
    return {**document, "applications": configs}


def deployed(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return all of Ray Serve's `details` that a deploy replaces."""
    configs = {name: deployed_config(application) for name, application in details["applications"].items()}
    return {"applications": configs, **{key: details.get(key) for key in _INSTANCE_WIDE}}


def _with_user_config(config: Mapping[str, Any], user_config: Mapping[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(dict(config))
    deployments = changed.setdefault("deployments", [])
    index, _ = given_user_config(deployments)
    if index is None:
        deployments.append({"name": INGRESS, "user_config": dict(user_config)})
    else:
        deployments[index]["user_config"] = dict(user_config)
    return changed


def deployed_config(application: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration from which an application was deployed; empty if Ray reports none."""
    return application.get("deployed_app_config") or {}


def given_user_config(deployments: Iterable[Mapping[str, Any]]) -> tuple[int | None, dict[str, Any]]:
    """Return the index of the ingress in `deployments` (None if absent), and its `user_config`."""
    for index, deployment in enumerate(deployments):
        if deployment.get("name") == INGRESS:
            return index, dict(deployment.get("user_config") or {})
    return None, {}
