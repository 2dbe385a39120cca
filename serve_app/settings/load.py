"""Check the `args:` of a configuration file, over its latency/cost profile, and return settings.

The names of vLLM's arguments are read from the source of the installed vLLM. To import vLLM takes seconds and
loads torch, which is too slow for `tideserve check` and the controller.
"""

import ast
import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from serve_app.settings.document import parse_yaml
from serve_app.settings.knobs import Knobs, overlay
from serve_app.settings.settings_error import SettingsError, from_pydantic, shown
from serve_app.settings.tree import AppSettings, ModelSettings
from serve_app.settings.variants import SHARED_ARGS

KNOBS = "knobs"
"""The key of a profile's knobs; the rest of a profile is model settings."""
PROFILES = ("lowest-latency", "balanced", "lowest-cost")
_ENGINE = ("engine/arg_utils.py", ("EngineArgs", "AsyncEngineArgs"))
_FRONTEND = ("entrypoints/*/cli_args.py", ("BaseFrontendArgs",))

OWNED = frozenset(ModelSettings.model_fields) | {
    "served_model_name",
    "enable_auto_tool_choice",
    "disable_log_stats",
    "enable_logging_iteration_details",
    "runner",
    "convert",
    "structured_outputs_config",
    "enable_lora",
    "max_lora_rank",
    "max_loras",
    "max_cpu_loras",
    "lora_modules",
}
"""Settings of Tideserve decide these arguments. A second way to set them could contradict the first."""
_DATA_PARALLEL = (
    "replicas are Tideserve's data parallelism: raise max_replicas; enable_expert_parallel splits a mixture "
    "of experts over the GPUs of one replica"
)
_PLACED = "Ray places the workers of a replica on nodes and GPUs: set placement_group_strategy"
REFUSED: Mapping[str, str] = {
    "prefill_context_parallel_size": "it would take more GPUs than a replica has, which are "
    "tensor_parallel_size x pipeline_parallel_size",
    **dict.fromkeys(("enable_elastic_ep", "elastic_ep_max_dp_size"), _DATA_PARALLEL),
    **dict.fromkeys(("enable_fault_tolerance", "fault_tolerance_config"), _DATA_PARALLEL),
    **{f"data_parallel_{name}": _DATA_PARALLEL for name in (
        "size", "size_local", "rank", "start_rank", "address", "rpc_port", "backend", "hybrid_lb",
        "external_lb", "multi_port_external_lb",
    )},
    **dict.fromkeys(("nnodes", "node_rank", "master_addr", "master_port", "device_ids"), _PLACED),
}  # fmt: skip
"""vLLM's arguments for GPUs and processes that Tideserve does not place, with the reason."""


def load_settings(args: Mapping[str, Any] | None) -> AppSettings:
    """Check `args` and return the tree.

    Raises:
        SettingsError: with each invalid key, its value and the bound that it breaks.
    """
    if not isinstance(args, Mapping):
        raise SettingsError([f"args = {shown(args)}: must be a mapping with at least `models`"])
    try:
        settings = AppSettings.model_validate(apply_profile(args))
    except ValidationError as error:
        raise from_pydantic(error) from None
    problems = [
        problem
        for index, model in enumerate(settings.models)
        for path, engine in _engines(f"models[{model.name if model.version_of else index}]", model)
        for problem in check_engine_args(path, engine)
    ]
    if problems:
        raise SettingsError(problems)
    return settings


def _engines(path: str, model: ModelSettings) -> Iterator[tuple[str, ModelSettings]]:
    """Yield the settings of each engine deployment, with the path of its `engine_args`."""
    if not model.variants:
        yield f"{path}.engine_args", model
    for index, engine in enumerate(model.engines() if model.variants else ()):
        own = model.variants[index].engine_args
        yield (f"{path}.variants[{index}].engine_args" if own else f"{path}.engine_args"), engine


def read_profile(name: str) -> dict[str, Any]:
    """Return the profile `name` as written in `serve_app/settings/profiles/<name>.yaml`.

    Raises:
        SettingsError: if there is no such profile.
    """
    if name not in PROFILES:
        raise SettingsError([f"profile = {shown(name)}: must be one of {', '.join(PROFILES)}"])
    file = f"{name}.yaml"
    text = resources.files("serve_app.settings.profiles").joinpath(file).read_text(encoding="utf-8")
    profile: dict[str, Any] = parse_yaml(text, file).value
    return profile


def apply_profile(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return `args` with the settings of its `profile`, if any, where a model does not set them itself."""
    merged = dict(args)
    name = merged.pop("profile", None)
    models = merged.get("models")
    if name is None or not isinstance(models, list):
        return merged
    profile = read_profile(name)
    profile.pop(KNOBS, None)
    merged["models"] = [_under(model, profile) if isinstance(model, Mapping) else model for model in models]
    return merged


def knob_defaults(args: Mapping[str, Any]) -> dict[str, Knobs]:
    """Return the default knobs by model name, for checked `args`. `user_config` overrides them.

    Raises:
        SettingsError: `profile` is not the name of a profile.
    """
    profile = args.get("profile")
    given = read_profile(profile).get(KNOBS, {}) if profile is not None else {}
    defaults = overlay(Knobs(), given)
    names = [str(model["name"]) for model in args["models"]]
    names += [
        f"{model['name']}@{variant['name']}"
        for model in args["models"]
        for variant in model.get("variants") or ()
        if variant.get("share") is not None
    ]
    return dict.fromkeys(names, defaults)


def _under(own: Mapping[str, Any], profile: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(profile)
    for key, value in own.items():
        below = profile.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = _under(value, below) if both and below is not None else value
    return result


@cache
def known_arguments() -> frozenset[str] | None:
    """Return the names that vLLM accepts; None without vLLM, where the engine checks them later."""
    spec = PathFinder.find_spec("vllm")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    names: set[str] = set()
    for file, classes in (_ENGINE, _FRONTEND):
        sources = (path.read_text(encoding="utf-8") for path in root.glob(file))
        for node in (node for source in sources for node in ast.parse(source).body):
            if isinstance(node, ast.ClassDef) and node.name in classes:
                names |= {
                    item.target.id
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
    return frozenset(names)


def check_engine_args(path: str, model: ModelSettings) -> list[str]:
    """Return the problems of a model's pass-through arguments, one line each."""
    problems = []
    known = known_arguments()
    for name, value in model.engine_args.items():
        if name in OWNED:
            problems.append(f"{path}.{name} = {value!r}: Tideserve's own settings decide this; set it there")
        elif name in SHARED_ARGS and any(name in variant.engine_args for variant in model.variants):
            problems.append(f"{path}.{name} = {value!r}: is the same for all variants; set it on the model")
        elif name in REFUSED:
            problems.append(f"{path}.{name} = {value!r}: not supported; {REFUSED[name]}")
        elif known is not None and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            problems.append(f"{path}.{name} = {value!r}: vLLM has no such argument{hint}")
        elif why := _misplaced(name, value, model):
            problems.append(f"{path}.{name} = {value!r}: {why}")
    return problems


def _misplaced(name: str, value: Any, model: ModelSettings) -> str:
    """Return why an argument of vLLM does not fit the placement of the model's workers, or ""."""
    strategy, size = model.placement_group_strategy, model.tensor_parallel_size
    if name == "distributed_executor_backend" and model.device == "gpu":
        return f"placement_group_strategy = {strategy!r} decides this on GPUs"
    if name == "decode_context_parallel_size" and (not isinstance(value, int) or value < 1 or size % value):
        return f"must divide tensor_parallel_size = {size}"
    if name == "numa_bind" and value and model.spans_nodes:
        return (
            "binds no worker of a replica over several nodes: placement_group_strategy = "
            f"{strategy!r} must be 'STRICT_PACK'"
        )
    return ""
