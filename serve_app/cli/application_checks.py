"""Checks of a Tideserve application in a Serve configuration, beyond those of Ray Serve's own schema."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from serve_app import env
from serve_app.settings import AppSettings, SettingsError, knob_defaults, load_settings
from serve_app.settings.document import unique_keys
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.settings_error import shown
from serve_app.settings.tree import ENGINE_PREFIX, INGRESS
from serve_app.settings.user_config import read_user_config

IMPORT_PATH = "serve_app.app:build"
POLICY_FUNCTION = "serve_app.controller.serve_policy:ServePolicy"

_OWNED = ("autoscaling_config", "num_replicas")
# In place of the defaults of an application whose own are not known; no knob breaks its bounds.
_UNBOUNDED = Knobs(max_replicas=10_000)
_RESOURCE_STEP = 1e-4
"""Ray counts resources in ten-thousandths."""


@dataclass(frozen=True, slots=True)
class Cpus:
    """The CPUs against which applications are checked."""

    count: float
    told: bool
    """Whether these are known to be the CPUs that will serve. Otherwise they are only this machine's, and a
    file for a cluster may be checked on any machine."""


def local_cpus() -> float:
    """The CPUs that a Ray started here counts: the machine's or container's, unless it is told others.

    Raises:
        SettingsError: if what it is told is not JSON, or not a number.
    """
    from ray._private.utils import get_num_cpus  # noqa: PLC0415

    text = os.environ.get(env.RAY_RESOURCES) or "{}"
    try:
        given = json.loads(text, object_pairs_hook=unique_keys)
        return float(given.get("CPU", get_num_cpus()))
    except (AttributeError, TypeError, ValueError) as error:
        must = "must be a JSON object with a number for each resource"
        raise SettingsError([f"{env.RAY_RESOURCES} = {shown(text)}: {must} ({error})"]) from None


@dataclass(frozen=True, slots=True)
class CheckedApplication:
    """A valid application: its settings, and the knobs in force by model name."""

    settings: AppSettings
    knobs: Mapping[str, Knobs]
    ingress_knobs: IngressKnobs


def check_application(application: Mapping[str, Any], cpus: Cpus | None = None) -> CheckedApplication:
    """Check one entry of `applications` that Ray Serve's schema has accepted, against `cpus` if not None.

    Raises:
        SettingsError: with every problem, each with its path within the application.
    """
    args, invalid = _refuse_scaling(application.get("args"))
    settings = None
    try:
        settings = load_settings(args)
    except SettingsError as error:
        invalid += error.problems
    problems = [_under_args(line) for line in invalid]
    problems += _check_policy(application)
    deployments = application.get("deployments") or []
    problems += _check_deployments(deployments, settings)
    defaults = knob_defaults(args) if settings is not None else dict.fromkeys(_names(args), _UNBOUNDED)
    index, user_config = given_user_config(deployments)
    knobs, ingress_knobs = defaults, IngressKnobs()
    try:
        if defaults:
            knobs, ingress_knobs = read_user_config(defaults, user_config)
    except SettingsError as error:
        problems += [f"deployments[{index}].user_config.{line}" for line in error.problems]
    if settings is None or problems:
        raise SettingsError(problems)
    if cpus is not None:
        path = "deployments" if index is None else f"deployments[{index}]"
        problems = check_room(settings, knobs, ingress_knobs, cpus, f"{path}.user_config.ingress")
        if problems:
            raise SettingsError(problems)
    return CheckedApplication(settings, knobs, ingress_knobs)


def given_user_config(deployments: Iterable[Mapping[str, Any]]) -> tuple[int | None, dict[str, Any]]:
    """The index of the ingress's entry in `deployments`, or None if it has none, and its `user_config`."""
    for index, deployment in enumerate(deployments):
        if deployment.get("name") == INGRESS:
            return index, dict(deployment.get("user_config") or {})
    return None, {}


def _under_args(problem: str) -> str:
    if problem.startswith("args"):
        return problem
    return f"args.{problem}".replace("args.(top level)", "args")


def _refuse_scaling(args: Any) -> tuple[Any, list[str]]:
    """`args` without `scaling`, which models once had, and a line for each with what replaces it."""
    if not isinstance(args, Mapping) or not isinstance(args.get("models"), list):
        return args, []
    problems: list[str] = []
    models: list[Any] = []
    for index, model in enumerate(args["models"]):
        if not isinstance(model, Mapping) or "scaling" not in model:
            models.append(model)
            continue
        problems.append(
            f"models[{index}].scaling = {shown(model['scaling'])}: replica counts are knobs, which change "
            f"without a restart; set them under deployments: [{{name: {INGRESS}, user_config: "
            f"{{autoscaling: {{{model.get('name')}: {{min_replicas: ..., max_replicas: ...}}}}}}}}]"
        )
        models.append({key: value for key, value in model.items() if key != "scaling"})
    return {**args, "models": models}, problems


def _check_policy(application: Mapping[str, Any]) -> list[str]:
    problems = []
    policy = application.get("autoscaling_policy")
    if policy is None:
        problems.append(
            "autoscaling_policy: required, and not given; add "
            f"`autoscaling_policy: {{policy_function: {POLICY_FUNCTION}}}` beside `import_path`: "
            "without it Ray Serve's default policy would decide, and the knobs would change nothing"
        )
        policy = {"policy_function": POLICY_FUNCTION}
    if policy.get("policy_kwargs"):
        problems.append(
            f"autoscaling_policy.policy_kwargs = {shown(policy['policy_kwargs'])}: the policy takes no "
            f"arguments; set knobs under {INGRESS}'s user_config, where a change restarts nothing"
        )
    function = policy.get("policy_function")
    if not _is_ours(function):
        problems.append(
            f"autoscaling_policy.policy_function = {shown(function)}: must be {POLICY_FUNCTION!r} or a "
            "subclass of it; another policy would ignore the knobs"
        )
    if application.get("external_scaler_enabled"):
        problems.append(
            "external_scaler_enabled = True: must be false; the policy owns the replica counts, "
            "and nothing else may set them"
        )
    return problems


def _is_ours(function: Any) -> bool:
    """Whether a policy function, `module:name` or `module.name`, is our policy or a subclass of it."""
    if function == POLICY_FUNCTION:
        return True
    module, _, name = str(function).replace(":", ".").rpartition(".")
    from serve_app.controller.serve_policy import ServePolicy  # noqa: PLC0415  Ray takes a second to import

    try:
        found = getattr(import_module(module), name, None)
    except (ImportError, ValueError):
        return False
    return isinstance(found, type) and issubclass(found, ServePolicy)


def _check_deployments(deployments: Iterable[Mapping[str, Any]], settings: AppSettings | None) -> list[str]:
    """The problems of `deployments`. Where `settings` are invalid (None), the names are not checked."""
    problems: list[str] = []
    known = None if settings is None else [INGRESS, *(model.deployment_name for model in settings.models)]
    seen: set[str] = set()
    for index, deployment in enumerate(deployments):
        name, path = str(deployment["name"]), f"deployments[{index}]"
        if known is not None and name not in known:
            problems.append(
                f"{path}.name = {name!r}: no such deployment; this application has "
                + ", ".join(repr(item) for item in known)
            )
            continue
        if name in seen:
            problems.append(f"{path}.name = {name!r}: given twice; make it one entry")
        seen.add(name)
        if name != INGRESS and not name.startswith(ENGINE_PREFIX):
            continue
        section = "ingress" if name == INGRESS else "autoscaling.<model name>"
        problems += [
            f"{path}.{key} = {shown(deployment[key])}: the policy owns the replica counts; "
            f"set min_replicas and max_replicas under {INGRESS}'s user_config.{section}"
            for key in _OWNED
            if key in deployment
        ]
    return problems


def _names(args: Any) -> list[str]:
    """The names of the models in `args`, which may otherwise be invalid."""
    models = args.get("models") if isinstance(args, Mapping) else None
    if not isinstance(models, list):
        return []
    names = [model.get("name") for model in models if isinstance(model, Mapping)]
    return [name for name in names if isinstance(name, str)]


def check_room(
    settings: AppSettings, knobs: Mapping[str, Knobs], ingress: IngressKnobs, cpus: Cpus, path: str
) -> list[str]:
    """Return the problem if the ingress at its maximum leaves some model no room for its first replica.

    The room is what the ingress at `max_replicas` and the other models at `min_replicas` leave of the CPUs,
    which count as one sum, because the nodes are not known. An application with custom resources is not
    checked: they name nodes about which nothing is known here. An application with GPUs is checked only
    against CPUs that are known to be those that will serve. `path` is that of the ingress's knobs.
    """
    if settings.ingress.resources or any(model.resources for model in settings.models):
        return []
    if not cpus.told and any(model.device != "cpu" for model in settings.models):
        return []
    each, most = settings.ingress.cpus_per_replica, ingress.max_replicas
    standing = sum(knobs[model.name].min_replicas * model.cpus_per_replica for model in settings.models)
    for model in settings.models:
        waking = 0.0 if knobs[model.name].min_replicas else model.cpus_per_replica
        left = cpus.count - standing - waking
        if each <= 0 or left >= most * each - _RESOURCE_STEP:
            continue
        fit = math.floor((left + _RESOURCE_STEP) / each)
        bound = (
            f"must be at most {fit}" if fit > 0 else "not even one fits: lower one of the cpus_per_replica"
        )
        return [
            f"{path}.max_replicas = {most}: the ingress may take {most * each:g} of {cpus.count:g} CPUs "
            f"(ingress.cpus_per_replica = {each:g}), but one replica of model {model.name!r} and the "
            f"min_replicas of the others leave {max(left, 0.0):g}, so requests could wait for a replica that "
            f"has no room; {bound}"
        ]
    return []
