"""Have each node on which an engine replica may be placed keep a zygote, spare processes, and the weights."""

import asyncio
from collections.abc import Sequence
from functools import partial

import grpc
import ray
from ray.serve._private.utils import override_runtime_envs_except_env_vars
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.placement import engine_environment, resources_on_one_node
from serve_app.cluster.ray_resources import fitting
from serve_app.cluster.spare_processes import start_spares
from serve_app.env import ZYGOTE
from serve_app.settings.tree import EMBEDDED, ModelSettings
from serve_app.weights.page_cache import prefetch
from serve_app.wire.documents import claim, erase, keys

_PERIOD_S = 10.0
_WAIT_S = 60.0
_MOST_SPARES = 4
_CLAIMS = "warm/"


async def keep_nodes_warm(models: Sequence[ModelSettings]) -> None:
    """Warm each node that joins, as long as the task runs. Where Ray fails to answer, try again later."""
    call = BoundedCall("the zygotes of the nodes", partial(warm, models), 0.0)
    while True:
        await call.get(_WAIT_S)
        await asyncio.sleep(_PERIOD_S)


def warm(models: Sequence[ModelSettings]) -> None:
    """Have Ray start a process in each model's environment for each replica a node has room for, up to four.

    The first of a node starts its zygote, and replicas find them at hand. A task has the node's kernel read
    the weights. Each node is warmed once, by whoever comes first; one that does not answer is tried again.

    Raises:
        grpc.RpcError: what the last node that did not answer failed with.
    """
    context = ray.get_runtime_context()
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    warmed, failure = set(keys(_CLAIMS)), None
    for name, node in nodes.items():
        for model in models:
            environment = engine_environment(model, zygote=True)
            zygote = environment["env_vars"][ZYGOTE]
            key = f"{_CLAIMS}{name}/{context.get_job_id()}/{model.name}/{zygote}"
            count = fitting(node["Resources"], resources_on_one_node(model), _MOST_SPARES)
            if not count or key in warmed or not claim(key):
                continue
            try:
                environment = override_runtime_envs_except_env_vars(context.runtime_env, environment)
                start_spares(node, environment, count)
            except grpc.RpcError as error:
                erase(key)
                failure = error
            else:
                _read_weights(name, model)
    for key in warmed:
        if key.removeprefix(_CLAIMS).split("/")[0] not in nodes:
            erase(key)
    if failure is not None:
        raise failure


def _read_weights(node: str, model: ModelSettings) -> None:
    if model.model != EMBEDDED and model.load_format != "dummy":
        task = ray.remote(prefetch).options(
            num_cpus=0,
            max_retries=0,
            runtime_env=engine_environment(model, zygote=False),  # else a spare process would run it
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        task.remote(model.model, model.revision)
