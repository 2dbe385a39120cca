"""Have each node on which an engine replica may be placed keep a zygote, and the weights in memory."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ray
from ray._private import state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.placement import engine_environment, resources_on_one_node
from serve_app.cluster.ray_resources import lacking
from serve_app.settings.tree import EMBEDDED, ModelSettings
from serve_app.weights.page_cache import prefetch
from serve_app.wire.documents import WARMED, put_document

_PERIOD_S = 10.0
_WAIT_S = 60.0
"""A zygote takes 10 s of CPU to import what it keeps."""


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

    The worker that Ray starts for the task starts the zygote, and may become the first replica itself. A
    second task, which nothing waits for, has the node's kernel read the weights.
    """
    pending = {}
    nodes = state.total_resources_per_node()
    warmed.intersection_update({(node, model) for node, model in warmed if node in nodes})
    for node, total in nodes.items():
        for model in models:
            if (node, model.name) not in warmed and not lacking(total, resources_on_one_node(model)):
                pending[_run(_nothing, node, model)] = (node, model)
    done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_WAIT_S) if pending else ([], [])
    for node, model in (pending[reference] for reference in done):
        warmed.add((node, model.name))
        if model.model != EMBEDDED and model.load_format != "dummy":
            _run(prefetch, node, model, model.model, model.revision)
    ray.get(done)  # raises what a task failed with; its replicas would fail alike, so it is not run again


def _run(function: Callable[..., Any], node: str, model: ModelSettings, *arguments: Any) -> Any:
    """Run `function` on a node in the environment of the model's engines; return Ray's reference to it."""
    remote = ray.remote(function).options(
        num_cpus=0,
        max_retries=0,
        runtime_env=engine_environment(model, zygote=True),
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    return remote.remote(*arguments)


def _nothing() -> None:
    """The task itself: all that matters is the process it runs in."""
