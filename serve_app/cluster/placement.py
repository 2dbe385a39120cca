"""Ray's actor options and placement group for the settings of an engine replica."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from serve_app.env import EAGER_CPU, EMBEDDED_MODEL, ENGINE, PYTHON, ZYGOTE
from serve_app.settings.tree import EMBEDDED, ModelSettings


def placement(model: ModelSettings) -> dict[str, Any]:
    """Return the deployment options that place one replica.

    GPUs of one node belong to the replica itself, and vLLM's workers are its child processes. If the GPUs may
    be on several nodes, each has a placement-group bundle, and vLLM starts a worker actor in each bundle. The
    replica is in the first bundle and claims no GPU there. Custom resources and CPUs belong to the replica,
    and so to the first bundle. With `PACK`, Ray fills one node after another, and vLLM ranks the bundles node
    by node. So a pipeline stage is on one node if each node has free GPUs for whole stages.
    """
    options = actor_options(model.cpus_per_replica, model.resources)
    placed: dict[str, Any] = {"ray_actor_options": options}
    if model.device == "cpu":
        return placed
    if not model.spans_nodes:
        options["num_gpus"] = model.ranks
        if model.accelerator_type is not None:
            options["accelerator_type"] = model.accelerator_type
        return placed
    bundle = {"GPU": 1.0, **_accelerator(model)}
    first = {"CPU": model.cpus_per_replica, **bundle, **model.resources}
    placed["placement_group_bundles"] = [first, *(dict(bundle) for _ in range(model.ranks - 1))]
    placed["placement_group_strategy"] = model.placement_group_strategy
    return placed


def actor_options(cpus: float, resources: Mapping[str, float]) -> dict[str, Any]:
    """Return Ray's actor options for `cpus` CPUs and these custom resources."""
    return {"num_cpus": cpus, **({"resources": dict(resources)} if resources else {})}


def replica_resources(model: ModelSettings) -> dict[str, float]:
    """Return the resources of one replica, by Ray's names."""
    needed = {"CPU": model.cpus_per_replica, **model.resources}
    if model.device == "gpu":
        needed |= {"GPU": float(model.ranks), **_accelerator(model)}
    return needed


def resources_on_one_node(model: ModelSettings) -> dict[str, float]:
    """Return the least resources of a node for a part of one replica."""
    return {**replica_resources(model), **({"GPU": 1.0} if model.spans_nodes else {})}


def engine_environment(model: ModelSettings, zygote: bool) -> dict[str, Any]:
    """Return Ray's `runtime_env` of a model's engine replicas.

    Replicas of the same environment share a zygote, because much of it is read while vLLM is imported.
    """
    embedded = EMBEDDED_MODEL if model.model == EMBEDDED else {}
    eager = EAGER_CPU if model.device == "cpu" and model.enforce_eager else {}
    variables = {**ENGINE, **embedded, **eager, **model.env}
    if not zygote:
        return {"env_vars": variables}
    key = hashlib.sha256(json.dumps(variables, sort_keys=True).encode()).hexdigest()[:8]
    return {"env_vars": {**variables, ZYGOTE: key}, "py_executable": PYTHON}


def _accelerator(model: ModelSettings) -> dict[str, float]:
    """Return the sliver that pins the type: Ray marks a node's accelerator with a resource of its name."""
    kind = model.accelerator_type
    return {} if kind is None else {f"accelerator_type:{kind}": 0.001}
