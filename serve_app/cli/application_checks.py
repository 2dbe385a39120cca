"""Checks of a Tideserve application in a Serve configuration, beyond those of Ray Serve's own schema."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from serve_app import env
from serve_app.cluster.knob_changes import given_user_config
from serve_app.settings.document import unique_keys
from serve_app.settings.knobs import IngressKnobs, Knobs, read_user_config
from serve_app.settings.load import knob_defaults, load_settings
from serve_app.settings.settings_error import SettingsError, shown
from serve_app.settings.tree import ENGINE_PREFIX, INGRESS, AppSettings

IMPORT_PATH = "serve_app.app:build"
POLICY_FUNCTION = "serve_app.controller.serve_policy:ServePolicy"

_OWNED = ("autoscaling_config", "num_replicas")
# The defaults if an application's settings are invalid. No valid knob exceeds these bounds.
_UNBOUNDED = Knobs(max_replicas=10_000)
_RESOURCE_STEP = 1e-4
"""Ray counts resources in ten-thousandths."""


@dataclass(frozen=True, slots=True)
class Cpus:
    """The CPUs against which applications are checked."""

    count: float
    certain: bool
    """Whether the application will run on these CPUs. If not, they are this machine's, and the file may be
    meant for a cluster."""


def local_cpus() -> float:
    """Return the CPUs that a Ray started here counts: those in `RAY_RESOURCES`, or the machine's.

    Raises:
        SettingsError: if the variable is not JSON, or its CPUs are not a number.
    """
    from ray._private.utils import get_num_cpus  # noqa: PLC0415

    text = os.environ.get(env.RAY_RESOURCES) or "{}"
    try:
        given = json.loads(text, object_pairs_hook=unique_keys)
        return float(given.get("CPU", get_num_cpus()))
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        must = "must be a JSON object with a number for each resource"
        raise SettingsError([f"{env.RAY_RESOURCES} = {shown(text)}: {must} ({error})"]) from None


@dataclass(frozen=True, slots=True)
class CheckedApplication:
    """A valid application: its settings, and the knobs in force by model name."""

    settings: AppSettings
    knobs: Mapping[str, Knobs]
    ingress_knobs: IngressKnobs


def check_application(application: Mapping[str, Any], cpus: Cpus | None = None) -> CheckedApplication:
    """Check one entry of `applications` that Ray Serve's schema has accepted.

    Args:
        cpus: The CPUs that the application must fit into; None skips this check.

    Raises:
        SettingsError: with every problem, each with its path within the application.
    """
    args: Any = application.get("args")
    settings, problems = None, list[str]()
    try:
        settings = load_settings(args)
    except SettingsError as error:
        problems += [_under_args(line) for line in error.problems]
    name = str(application.get("name", "default"))
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):  # nor may a slash lead to documents of another application
        must = "must have only letters, digits, '.', '_' and '-': in HAProxy 'a b' would be 'a_b'"
        problems.append(f"name = {shown(name)}: {must}")
    problems += _check_policy(application)
    deployments = application.get("deployments") or []
    problems += _check_deployments(deployments, settings)
    defaults = knob_defaults(args) if settings is not None else dict.fromkeys(_names(args), _UNBOUNDED)
    index, user_config = given_user_config(deployments)
    knobs, ingress_knobs = defaults, IngressKnobs()
    try:
        if defaults:
            lora = None if settings is None else {model.name: model.lora for model in settings.models}
            knobs, ingress_knobs = read_user_config(defaults, user_config, lora)
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


def _under_args(problem: str) -> str:
    if problem.startswith("args"):
        return problem
    return f"args.{problem}".replace("args.(top level)", "args")


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
    """Return the problems of `deployments`. The names are not checked if `settings` is None (invalid)."""
    problems: list[str] = []
    known = (
        None
        if settings is None
        else [INGRESS, *(engine.engine_name for model in settings.models for engine in model.engines())]
    )
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
    """Return the names of the models in `args`, which may be invalid."""
    models = args.get("models") if isinstance(args, Mapping) else None
    if not isinstance(models, list):
        return []
    names = [model.get("name") for model in models if isinstance(model, Mapping)]
    return [name for name in names if isinstance(name, str)]


def check_room(
    settings: AppSettings, knobs: Mapping[str, Knobs], ingress: IngressKnobs, cpus: Cpus, path: str
) -> list[str]:
    """Return a problem if the ingress at `max_replicas` leaves a model no room for its first replica.

    The other models count with `min_replicas`. All CPUs count as one sum, because the nodes are unknown. An
    application with custom resources is not checked, because such resources name particular nodes. An
    application with GPUs is checked only if `cpus.certain`. `path` is the path of the ingress's knobs.
    """
    if settings.ingress.resources or any(model.resources or model.variants for model in settings.models):
        return []
    if not cpus.certain and any(model.device != "cpu" for model in settings.models):
        return []
    each, most = settings.ingress.cpus_per_replica, ingress.max_replicas
    standing = sum(knobs[model.name].min_replicas * model.cpus_per_replica for model in settings.models)
    for model in settings.models:
        waking = 0.0 if knobs[model.name].min_replicas else model.cpus_per_replica
        left = cpus.count - standing - waking
        if each <= 0 or left >= most * each - _RESOURCE_STEP:
            continue
        fit = math.floor((left + _RESOURCE_STEP) / each)
        bound = f"must be at most {fit}" if fit > 0 else "no ingress replica fits: lower a cpus_per_replica"
        return [
            f"{path}.max_replicas = {most}: the ingress may take {most * each:g} of {cpus.count:g} CPUs "
            f"(ingress.cpus_per_replica = {each:g}), but one replica of model {model.name!r} and the "
            f"min_replicas of the others leave {max(left, 0.0):g}, so requests could wait for a replica that "
            f"has no room; {bound}"
        ]
    return []
