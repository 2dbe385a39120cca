"""Warm nodes: a zygote, spare processes and cached weights wherever an engine replica may be placed.

A spare process is a worker that Ray starts in advance. Ray's part of a replica's start (the worker's setup
script, its connections and the fork) then takes 0.2 s instead of one to two seconds. An idle worker that has
run a task is no spare process, because Ray gives such a worker no actor.
"""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

import ray
from google.protobuf import json_format
from ray._private.grpc_utils import init_grpc_channel
from ray._private.utils import get_runtime_env_info
from ray.core.generated.common_pb2 import PYTHON
from ray.core.generated.node_manager_pb2 import PrestartWorkersRequest
from ray.core.generated.node_manager_pb2_grpc import NodeManagerServiceStub
from ray.core.generated.runtime_environment_pb2 import RuntimeEnvInfo
from ray.runtime_env import RuntimeEnv
from ray.serve._private.utils import override_runtime_envs_except_env_vars
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from serve_app import env
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.placement import engine_environment, replica_resources, resources_on_one_node
from serve_app.settings.tree import EMBEDDED, ModelSettings
from serve_app.weights.page_cache import prefetch
from serve_app.wire.documents import WARMED, claim, erase, keys, put_document
from serve_app.wire.resources import fitting, lacking
from serve_app.zygote.python import REFUSED_S

RayNode = Mapping[str, Any]
"""One of `ray.nodes()`."""

_PRESTART_S = 5.0
_KEPT_S = 365 * 24 * 3600
"""How long Ray keeps spare processes: longer than a node is likely to live."""
_PERIOD_S = 10.0
_WAIT_S = 60.0
"""The bound on a task. A zygote's imports take 10 s of CPU."""
_MOST_SPARES = 2
"""The bound on spare processes per node. Each takes about 85 MiB, and wakes 150 times a second."""
_CLAIMS = "spares/"


async def keep_nodes_warm(app: str, models: Sequence[ModelSettings]) -> None:
    """Warm each node that joins, until cancelled. If Ray does not answer, try again later."""
    call = BoundedCall("the zygotes of the nodes", partial(warm_and_report, app, models, {}), 0.0)
    while True:
        await call.get(_WAIT_S)
        await asyncio.sleep(_PERIOD_S)


def warm_and_report(app: str, models: Sequence[ModelSettings], warmed: dict[tuple[str, str], float]) -> None:
    """Warm the nodes, and report the warm nodes to the policy of `app`."""
    warm(models, warmed, time.monotonic())
    put_document(WARMED, app, sorted(pair for pair, until in warmed.items() if until == inf))


def warm(models: Sequence[ModelSettings], warmed: dict[tuple[str, str], float], now: float = 0.0) -> None:
    """Run a tiny task in each model's environment, on each node with room for a replica of the model.

    The task's worker starts the zygote, and then spare processes are started. A second task, for which
    nothing waits, has the node's kernel read the weights. If another process has started spares, the first
    task is skipped, because Ray would run it in a spare process. `warmed` has, for each node and model that
    was tried, the time of the next try in seconds: infinity if the node's zygote forks, else an hour after
    `now`. A zygote may refuse to fork.

    Raises:
        Exception: the error of the last task or node that failed. The node is retried after an hour, because
            until then its replicas are likely to fail in the same way.
    """
    pending = {}
    claims = keys(_CLAIMS)  # read before the nodes, so that a claim without a node is on a removed node
    nodes: dict[str, RayNode] = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    for key in claims:
        if key.split("/")[1] not in nodes:
            erase(key)
    for pair in [pair for pair in warmed if pair[0] not in nodes]:
        del warmed[pair]
    for name, node in nodes.items():
        for model in models:
            if now < warmed.get((name, model.name), now) or lacking(
                node["Resources"], resources_on_one_node(model)
            ):
                continue
            if _claim_key(name, model) in claims:
                warmed[name, model.name] = inf
                _read_weights(name, model)
            else:
                pending[_run(_is_fork, name, model, zygote=True)] = (name, model)
    done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_WAIT_S) if pending else ([], [])
    failure = None
    for reference in done:
        name, model = pending[reference]
        warmed[name, model.name] = now + REFUSED_S
        _read_weights(name, model)
        try:
            if ray.get(reference):
                warmed[name, model.name] = inf
                _add_spares(nodes[name], model)
        except Exception as error:  # other nodes and models must still get their spares
            failure = error
    if failure is not None:
        raise failure


def _read_weights(node: str, model: ModelSettings) -> None:
    if model.model != EMBEDDED and model.load_format != "dummy":
        _run(prefetch, node, model, model.model, model.revision, zygote=False)


def _add_spares(node: RayNode, model: ModelSettings) -> None:
    """Start a spare process for each replica that a node has room for, unless another process does so."""
    if claim(_claim_key(node["NodeID"], model)):
        # At least one, because a replica with several GPUs may have its workers on other nodes.
        room = max(1, fitting(node["Resources"], replica_resources(model), _MOST_SPARES))
        start_spares(node, _inherited_environment(model), room)


def _claim_key(node: str, model: ModelSettings) -> str:
    """Return the key that a process claims before it starts a model's spares on a node.

    The key has the job and the environment, because Ray gives an actor any spare process of its job with
    exactly its environment. Models may share an environment.
    """
    environment = json.dumps(_inherited_environment(model), sort_keys=True)
    digest = hashlib.sha256(environment.encode()).hexdigest()[:8]
    return f"{_CLAIMS}{node}/{ray.get_runtime_context().get_job_id()}/{digest}"


def _inherited_environment(model: ModelSettings) -> dict[str, Any]:
    """Return the environment of a model's engines, merged with the application's, which this process has."""
    inherited = ray.get_runtime_context().runtime_env
    merged: dict[str, Any] = override_runtime_envs_except_env_vars(
        inherited, engine_environment(model, zygote=True)
    )
    return merged


def _run(function: Callable[..., Any], node: str, model: ModelSettings, *arguments: Any, zygote: bool) -> Any:
    """Run `function` on a node in its own process, in the environment of the model's engines.

    Returns Ray's reference to the result. Without `zygote` the function runs in plain Python, which uses no
    spare process.
    """
    remote = ray.remote(max_calls=1)(function).options(
        num_cpus=0,
        max_retries=0,
        runtime_env=engine_environment(model, zygote),
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    return remote.remote(*arguments)


def _is_fork() -> bool:
    """Return whether the worker that Ray started for this task is a fork of the zygote."""
    return env.ZYGOTE_READY_AT in os.environ


def start_spares(node: RayNode, environment: Mapping[str, Any], count: int) -> None:
    """Have Ray start `count` workers for actors with the runtime environment `environment` on a node.

    Raises:
        grpc.RpcError: the node's raylet does not answer.
    """
    text = get_runtime_env_info(RuntimeEnv(**environment), serialize=True)
    request = PrestartWorkersRequest(
        language=PYTHON,
        job_id=bytes.fromhex(ray.get_runtime_context().get_job_id()),
        runtime_env_info=json_format.Parse(text, RuntimeEnvInfo()),
        keep_alive_duration_secs=_KEPT_S,
        num_workers=count,
    )
    with init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}") as channel:
        NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=_PRESTART_S)


def start_spare_here() -> None:
    """Have Ray start one more worker like this process on its node.

    A replica calls this at its end, because it makes room for another replica.
    """
    context = ray.get_runtime_context()
    (node,) = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
    start_spares(node, context.runtime_env, 1)
