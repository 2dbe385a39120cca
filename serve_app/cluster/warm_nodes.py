"""Have each node on which an engine replica may be placed keep a zygote, spare processes, and the weights."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import grpc
import ray
from ray.serve._private.utils import override_runtime_envs_except_env_vars
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.placement import engine_environment, resources_on_one_node
from serve_app.cluster.ray_resources import fitting
from serve_app.cluster.spare_processes import RayNode, start_spares
from serve_app.env import ZYGOTE
from serve_app.settings.tree import EMBEDDED, ModelSettings
from serve_app.weights.page_cache import prefetch
from serve_app.wire.documents import WARMED, claim, erase, keys, put_document

_PERIOD_S = 10.0
_WAIT_S = 60.0
"""A zygote takes 10 s of CPU to import what it keeps."""
_MOST_SPARES = 4
_CLAIMS = "spares/"


async def keep_nodes_warm(app: str, models: Sequence[ModelSettings]) -> None:
    """Warm each node that joins, as long as the task runs. Where Ray fails to answer, try again later."""
    call = BoundedCall("the zygotes of the nodes", partial(warm_and_tell, app, models, set()), 0.0)
    while True:
        await call.get(_WAIT_S)
        await asyncio.sleep(_PERIOD_S)


def warm_and_tell(app: str, models: Sequence[ModelSettings], warmed: set[tuple[str, str]]) -> None:
    """Warm the nodes, and tell the policy of `app` which ones are warm: a start elsewhere takes longer."""
    warm(models, warmed)
    put_document(WARMED, app, sorted(warmed))


def warm(models: Sequence[ModelSettings], warmed: set[tuple[str, str]]) -> None:
    """Run an empty task in each model's environment, on each node with room for a replica of it.

    The worker that Ray starts for the task starts the zygote. Once there is one, spare processes are started.
    A second task, which nothing waits for, has the node's kernel read the weights.
    """
    pending = {}
    nodes: dict[str, RayNode] = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    warmed.intersection_update({(node, model) for node, model in warmed if node in nodes})
    for name, node in nodes.items():
        for model in models:
            if (name, model.name) not in warmed and _room(node, model):
                pending[_run(_nothing, name, model, zygote=True)] = (name, model)
    done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_WAIT_S) if pending else ([], [])
    for name, model in (pending[reference] for reference in done):
        warmed.add((name, model.name))
        if model.model != EMBEDDED and model.load_format != "dummy":
            _run(prefetch, name, model, model.model, model.revision, zygote=False)
    ray.get(done)  # raises what a task failed with; its replicas would fail alike, so it is not run again
    if done:
        _add_spares(nodes, [pending[reference] for reference in done])


def _add_spares(nodes: dict[str, RayNode], warmed: Iterable[tuple[str, ModelSettings]]) -> None:
    """Start a spare process for each replica that a node has room for, unless another warmer has done so.

    Raises:
        grpc.RpcError: what the last node that did not answer failed with. It is not asked again.
    """
    failure, context = None, ray.get_runtime_context()
    for key in keys(_CLAIMS):
        if key.split("/")[1] not in nodes:
            erase(key)
    for name, model in warmed:
        environment = engine_environment(model, zygote=True)
        zygote = environment["env_vars"][ZYGOTE]
        if claim(f"{_CLAIMS}{name}/{context.get_job_id()}/{model.name}/{zygote}"):
            environment = override_runtime_envs_except_env_vars(context.runtime_env, environment)
            try:
                start_spares(nodes[name], environment, _room(nodes[name], model))
            except grpc.RpcError as error:
                failure = error
    if failure is not None:
        raise failure


def _room(node: RayNode, model: ModelSettings) -> int:
    """Return how many replicas of a model an empty node has room for, up to as many as it has spares."""
    return fitting(node["Resources"], resources_on_one_node(model), _MOST_SPARES)


def _run(function: Callable[..., Any], node: str, model: ModelSettings, *arguments: Any, zygote: bool) -> Any:
    """Run `function` on a node in a process of its own, in the environment of the model's engines.

    Returns Ray's reference to what it returns. With `zygote` false, it is plain Python in that environment,
    which leaves the spare processes alone.
    """
    remote = ray.remote(max_calls=1)(function).options(
        num_cpus=0,
        max_retries=0,
        runtime_env=engine_environment(model, zygote),
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    return remote.remote(*arguments)


def _nothing() -> None:
    """The task itself: all that matters is the process it runs in."""
