"""`tideserve chart-values`: values of the Helm chart that serve what a configuration file serves."""

import argparse
import math
import re
import sys
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import yaml

from serve_app.cli import CommandError
from serve_app.cli.application_checks import CheckedApplication
from serve_app.cli.config_file import read_config
from serve_app.cluster.knob_changes import given_user_config
from serve_app.settings.storage import LedgerSettings
from serve_app.settings.tree import EMBEDDED, INGRESS, IngressSettings, ModelSettings

_RESOURCES = ("resources",)
"""Custom resources are left out, because the chart places replicas by its own."""
_PROFILES = {"A100": "a100-80gb", "H100": "h100", "L4": "l4", "A10G": "a10g", None: "any-gpu"}
"""The chart's GPU profiles by Ray's names of accelerators. Other accelerators get a profile of their own."""
_MAX_WORKERS = {"cpu": 4, "gpu": 8, "ingress": 4}
"""Pods of a worker group that the chart permits by default."""
_NOTICE_S = 25
"""Seconds that every large cloud gives before it takes a spot node away."""
_CPU_POD, _INGRESS_POD = 4, 2
"""CPUs of a pod by the chart's defaults."""
_FROM_PROFILE = ("device", "accelerator_type", "gpus_per_replica", "resources")
"""Settings of a model that its GPU profile decides."""
_CARRIED = {
    *("name", "route_prefix", "import_path", "autoscaling_policy", "args", "deployments"),
    *("external_scaler_enabled",),
}
"""Keys of an application that values express, or that the chart writes the same way."""


def add_command(commands: Any) -> None:
    """Register `chart-values`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "chart-values",
        help="write values for the Helm chart from a configuration",
        description="Write values of the Helm chart that serve what a valid configuration file serves.",
        epilog="Exit status: 0, 1 if an application must be chosen, 2 if the file is not valid.",
    )
    parser.add_argument("config", type=Path, help="Serve configuration file")
    name_help = "the application, if the file has several"
    parser.add_argument("--application", metavar="NAME", help=name_help)
    image_help = "repository of your image (default: %(default)s)"
    parser.add_argument(
        "--image", default="registry.example/tideserve", metavar="REPOSITORY", help=image_help
    )
    parser.set_defaults(command=chart_values)


def chart_values(options: argparse.Namespace) -> int:
    """Print the values, and to stderr the settings that need more than values.

    Raises SettingsError for an invalid file, and CommandError for an application that is not in it.
    """
    config = read_config(options.config)
    names = [options.application] if options.application else list(config.applications)
    if len(names) > 1 or names[0] not in config.applications:
        found = ", ".join(config.applications)
        raise CommandError(f"{options.config}: choose one with --application; it has {found}")
    [written] = [each for each in config.document["applications"] if each.get("name", "default") == names[0]]
    checked = config.applications[names[0]]
    print(f"# Written by `tideserve chart-values` from {options.config.name}. Set image.repository to yours.")
    values = {"image": {"repository": options.image}, **values_of(written, checked)}
    print(yaml.safe_dump(values, sort_keys=False, width=100), end="")
    for note in left_out(written, checked):
        print(f"{options.config}: {note}", file=sys.stderr)
    return 0


def values_of(application: Mapping[str, Any], checked: CheckedApplication) -> dict[str, Any]:
    """Return the values for an entry of `applications`, with its checked form."""
    args, settings = application["args"], checked.settings
    _, live = given_user_config(application.get("deployments") or [])
    drain_s = max(model.drain_timeout_s for model in settings.models)
    models: dict[str, Any] = {}
    profiles: dict[str, dict[str, Any]] = {}
    pods: dict[tuple[str, int], float] = {}
    versions = {model.version_of: model for model in settings.models if model.version_of}
    for given, model in zip(args["models"], settings.models, strict=False):  # versions come after models
        profile = _profile_name(model)
        entry = {key: value for key, value in given.items() if key not in _FROM_PROFILE}
        entry = {"gpuProfile": profile, "model": EMBEDDED, "drain_timeout_s": model.drain_timeout_s, **entry}
        if knobs := live.get("autoscaling", {}).get(model.name):
            entry["autoscaling"] = knobs
        models[_key(model.name, models)] = entry
        version = [versions[model.name]] if model.name in versions else []
        if given.get("variants"):
            of_model = iter(model.engines())
            entry["variants"] = [
                {
                    "gpuProfile": _variant_profile(next(iter(version) if "share" in variant else of_model)),
                    **_without(variant, _FROM_PROFILE),
                }
                for variant in given["variants"]
            ]
        for engine in (*model.engines(), *version):
            profile = _variant_profile(engine)
            own = profiles.setdefault(profile, {} if profile in _PROFILES.values() else _new_profile(engine))
            group, replicas = (profile, engine.ranks), checked.knobs[model.name].max_replicas
            if engine.variant:
                replicas = min(replicas + 2, engine.variants[0].max_replicas)  # and spare ones
            pods[group] = pods.get(group, 0.0) + replicas * _pods_each(engine, own)
            if (most := math.ceil(pods[group] - 1e-9)) > _MAX_WORKERS[engine.device]:
                own["maxWorkers"] = max(most, own.get("maxWorkers", 0))
    app = {key: args[key] for key in ("profile", "request_log", "telemetry", "ui", "zygote") if key in args}
    if _is_shared(settings.ledger):
        app["ledger"] = {"enabled": settings.ledger.enabled, **args["ledger"]}
    if settings.batch.shared:
        app["batch"] = {"enabled": settings.batch.enabled, **_without(args["batch"], _RESOURCES)}
    app["http"] = {key: value for key, value in args.get("http", {}).items() if key != "api_keys_file"}
    ingress = _without(args.get("ingress", {}), _RESOURCES)
    app["ingress"] = ingress | ({"autoscaling": live["ingress"]} if live.get("ingress") else {})
    values = {
        "app": {"drain_timeout_s": drain_s, **{key: value for key, value in app.items() if value != {}}},
        "models": models,
        "gpuProfiles": {name: profile for name, profile in profiles.items() if profile},
        "ingressWorkers": _ingress_workers(settings.ingress, checked.ingress_knobs.max_replicas),
    }
    return {name: value for name, value in values.items() if value}


def left_out(application: Mapping[str, Any], checked: CheckedApplication) -> list[str]:
    """Return a line for each setting that values do not express, or that names a file of this machine."""
    lines = []
    if checked.settings.http.api_keys_file is not None:
        lines.append("http.api_keys_file: make a Secret of the file, and name it in apiKeys.existingSecret")
    if checked.settings.ledger.enabled and not _is_shared(checked.settings.ledger):
        lines.append(
            "ledger: pods share no SQLite file, so it is off; name a Postgres database in app.ledger.url"
        )
    if checked.settings.batch.enabled and not checked.settings.batch.shared:
        lines.append(
            "batch: pods share no folder, so it is off; name a Postgres database in app.batch.database, and "
            "an object store in app.batch.files"
        )
    lines += [
        f"gpuProfiles.{_variant_profile(engine)}: set nodeSelector and tolerations of the spot nodes"
        for model in checked.settings.models
        for engine in model.engines()
        if _is_preemptible(engine)
    ]
    lines += [f"{key}: the chart has no value for it" for key in application if key not in _CARRIED]
    for index, deployment in enumerate(application.get("deployments") or []):
        known = {"name", "user_config"} if deployment["name"] == INGRESS else {"name"}
        lines += [
            f"deployments[{index}].{key}: the chart has no value for it" for key in {*deployment} - known
        ]
    for index, model in enumerate(checked.settings.models):
        for name in ("model", "tokenizer", "chat_template"):
            path = getattr(model, name)
            if path is not None and path.startswith((".", "/", "~")):
                lines.append(
                    f"models[{index}].{name} = {path!r}: mount it in the pods (extraVolumes, modelCache)"
                )
    return lines


def _key(name: str, taken: Container[str]) -> str:
    """Return a DNS label for the name of a model, which no other model has."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:58].strip("-") or "model"
    return next(key for key in (label, *(f"{label}-{n}" for n in range(2, 1000))) if key not in taken)


def _without(section: Mapping[str, Any], left_out: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in left_out}


def _is_shared(ledger: LedgerSettings) -> bool:
    return ledger.url is not None and not ledger.url.startswith("sqlite:")


def _profile_name(model: ModelSettings) -> str:
    if model.device == "cpu":
        return "cpu"
    if model.accelerator_type in _PROFILES:
        return _PROFILES[model.accelerator_type]
    return re.sub(r"[^a-z0-9]+", "-", str(model.accelerator_type).lower()).strip("-")[:40].strip("-")


def _variant_profile(engine: ModelSettings) -> str:
    """Return the profile of the replicas of a variant, or of a model without variants."""
    profile = _profile_name(engine)
    return f"{profile}-{engine.variant}"[:40].strip("-") if _is_preemptible(engine) else profile


def _is_preemptible(engine: ModelSettings) -> bool:
    return bool(engine.variant) and engine.variants[0].preemptible


def _new_profile(model: ModelSettings) -> dict[str, Any]:
    """Return a profile for an accelerator without one, or larger pods where a CPU replica needs them."""
    if model.device == "cpu":
        cpus = math.ceil(model.cpus_per_replica)
        return {"perPod": {"cpu": str(cpus)}} if cpus > _CPU_POD else {}
    notice = {"noticeSeconds": _NOTICE_S} if _is_preemptible(model) else {}
    return {
        "device": "gpu",
        "accelerator_type": model.accelerator_type,
        "gpuResource": "nvidia.com/gpu",
        "gpusPerNode": 8,
        "perGpu": {"cpu": str(max(math.ceil(model.cpus_per_replica), 8)), "memory": "64Gi", "shm": "8Gi"},
        "minWorkers": 0,
        "maxWorkers": _MAX_WORKERS["gpu"],
        "idleTimeoutSeconds": 60,
        **notice,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }


def _pods_each(model: ModelSettings, profile: Mapping[str, Any]) -> float:
    """Return the share of a pod that one replica takes."""
    if model.device == "gpu":
        return 1.0
    return model.cpus_per_replica / float(profile.get("perPod", {}).get("cpu", _CPU_POD))


def _ingress_workers(ingress: IngressSettings, most: int) -> dict[str, Any]:
    """Return the number and size of the ingress's pods, where the chart's defaults do not hold `most`."""
    workers: dict[str, Any] = {"minWorkers": 1} if most == 1 else {}
    cpus = max(math.ceil(ingress.cpus_per_replica), _INGRESS_POD)
    if cpus > _INGRESS_POD:
        workers["resources"] = {kind: {"cpu": str(cpus)} for kind in ("requests", "limits")}
    if ingress.cpus_per_replica > 0:
        pods = math.ceil(most / (cpus // ingress.cpus_per_replica))
        if pods > _MAX_WORKERS["ingress"]:
            workers["maxWorkers"] = pods
    return workers
