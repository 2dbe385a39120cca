"""Changes to Ray Serve. Ray is imported inside the functions: the zygote loads this module without Ray."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import pickle
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from serve_app.patches.ray_idle import rest_while_quiet

if TYPE_CHECKING:
    from ray.serve._private.cluster_node_info_cache import ClusterNodeInfoCache
    from ray.serve._private.common import DeploymentID, ReplicaID
    from ray.serve._private.config import ReplicaConfig
    from ray.serve._private.deployment_info import DeploymentInfo
    from ray.serve._private.replica import Replica
    from ray.serve.handle import DeploymentHandle
    from ray.util import metrics

GCS_INTERVAL_S = 0.9
"""The controller may see a node's death, drain or free resources this much later. Less than a second, so that
each turn of the idle controller, one a second, asks."""


def change_controller() -> None:
    """Make all changes to Ray Serve's controller.

    Ray calls this function in the controller, by the path in `RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH`.
    """
    ask_gcs_seldom()
    start_no_fallback_proxy()
    version_each_deployment()
    stop_named_replicas_first()
    rest_while_quiet()


def ask_gcs_seldom() -> None:
    """Have Ray Serve's controller ask the GCS for the nodes of the cluster at most about once a second.

    Ray's own controller asks three times in every turn of its control loop, ten turns a second.
    """
    from ray.serve._private.cluster_node_info_cache import ClusterNodeInfoCache  # noqa: PLC0415

    ClusterNodeInfoCache.update = at_most_every(GCS_INTERVAL_S, ClusterNodeInfoCache.update)


def at_most_every(
    interval_s: float,
    update: Callable[[ClusterNodeInfoCache], None],
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[ClusterNodeInfoCache], None]:
    """Return `update`, which skips calls until `interval_s` after its last success for the same cache."""

    def update_if_due(cache: ClusterNodeInfoCache) -> None:
        now = clock()
        if now < getattr(cache, "due_at", now):
            return
        update(cache)
        cache.due_at = now + interval_s

    return update_if_due


def start_no_fallback_proxy() -> None:
    """Have Ray Serve's controller start no proxy of its own behind HAProxy.

    HAProxy would use it while no ingress replica is up. It would queue the requests or answer 404, where
    HAProxy answers 503 with a reason. It would take 147 MiB and 0.016 of a core.
    """
    from ray.serve._private.proxy_state import ProxyStateManager  # noqa: PLC0415

    ProxyStateManager._start_fallback_proxy_if_needed = lambda *_: None


def version_each_deployment() -> None:
    """Have Ray Serve's controller give each deployment of Tideserve a version of its own.

    Ray replaces the replicas of a deployment whose version has changed. By default all deployments of an
    application have one version, a hash of its whole `args`. So a changed setting of the ingress would
    restart every engine.
    """
    from ray.serve._private import application_state  # noqa: PLC0415

    read = application_state.deploy_args_to_deployment_info

    def read_with_version(**deployment: Any) -> DeploymentInfo:
        info = read(**deployment)
        if (version := own_version(info.replica_config)) is not None:
            info.version = info.deployment_config.version = version
        return info

    application_state.deploy_args_to_deployment_info = read_with_version


def own_version(config: ReplicaConfig) -> str | None:
    """Return a hash of a deployment's class and arguments.

    Ray itself compares the actor options, which have the runtime environment, and the placement group.

    Returns:
        None for a deployment whose arguments are not JSON, such as the ingress with its handles, and for a
        deployment of another application.
    """
    if b"serve_app." not in config.serialized_deployment_def:
        return None
    try:
        args = [
            _PlainUnpickler(io.BytesIO(pickled)).load()
            for pickled in (config.serialized_init_args, config.serialized_init_kwargs)
            if pickled is not None
        ]
        # The bytes of a pickle depend on which strings are the same object, so they cannot be hashed.
        text = json.dumps(args, sort_keys=True)
    except (pickle.UnpicklingError, TypeError):
        return None
    return hashlib.sha256(config.serialized_deployment_def + text.encode()).hexdigest()


_stop_first: dict[tuple[str, str], frozenset[str]] = {}
"""By application and deployment, the replicas to stop first. Only in Ray Serve's controller."""


def metric_reports(ctx: Any) -> Mapping[Any, Mapping[str, Sequence[Any]]]:
    """Return the newest report of each running replica of an autoscaling context: by replica and metric.

    Ray's `raw_metrics` has the same by metric and replica. Laying out 1,000 reports so, and reading them
    back, took a fifth of a decision about 100 models.
    """
    state = getattr(getattr(ctx, "_raw_metrics_value", None), "__self__", None)
    if state is not None:
        known = state._replica_metrics
        return {replica: known[replica].metrics for replica in ctx.running_replicas if replica in known}
    reports: defaultdict[Any, dict[str, Sequence[Any]]] = defaultdict(dict)
    for name, column in (ctx.raw_metrics or {}).items():
        for replica, series in column.items():
            reports[replica][name] = series
    return reports


def stop_first(app: str, deployment: str, replicas: Collection[str]) -> None:
    """Have Ray stop these running replicas first when it next stops replicas of a deployment."""
    _stop_first[app, deployment] = frozenset(replicas)


def stop_named_replicas_first() -> None:
    """Have Ray Serve's controller stop the replicas of `stop_first` first, also if others still start.

    Ray stops replicas that do not run yet, and then the newest one on the node with the fewest replicas. So
    room for a replica with several GPUs would become free in parts, on several nodes.
    """
    from ray.serve._private.deployment_scheduler import DeploymentScheduler  # noqa: PLC0415

    choose = DeploymentScheduler._get_replicas_to_stop

    def choose_named(
        scheduler: DeploymentScheduler, deployment: DeploymentID, most: int, *gangs: Any, **more: Any
    ) -> set[ReplicaID]:
        chosen: set[ReplicaID] = choose(scheduler, deployment, most, *gangs, **more)
        running = scheduler._running_replicas[deployment]
        names = _stop_first.get((deployment.app_name, deployment.name), frozenset())
        named = [replica for replica in running if replica.unique_id in names - {r.unique_id for r in chosen}]
        others = [replica for replica in chosen if replica.unique_id not in names]
        others.sort(key=lambda replica: replica not in running)
        for given, taken in zip(named, others, strict=False):
            chosen = chosen - {taken} | {given}
        return chosen

    DeploymentScheduler._get_replicas_to_stop = choose_named


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain data, and imports nothing into the controller."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is not plain data")


def is_draining() -> bool:
    """Whether the Serve replica of this process drains. Ray gives a replica's own code no sign of it.

    A stopping replica that `accept_until` makes accept requests does not drain yet.
    """
    from ray._private.worker import global_worker  # noqa: PLC0415

    replicas = [replica._replica_impl for replica in global_worker.actors.values()]
    return any(replica._shutting_down and not getattr(replica, "accepts", False) for replica in replicas)


def accept_until(may_refuse: Callable[[], Awaitable[bool]]) -> None:
    """Have the Serve replica of this process accept connections from HAProxy until `may_refuse` returns.

    `may_refuse` returns whether HAProxy has another replica. If so, this one stays open until HAProxy has
    forgotten it.

    A stopping replica refuses connections after a fixed time. If the replica is the only one, HAProxy then
    has none, until the next one has started. `serve_app.haproxy` sends it requests while it drains.
    """
    from ray.serve._private.replica import Replica  # noqa: PLC0415

    drain = Replica._drain_behind_haproxy

    async def accept_and_drain(replica: Replica, min_draining_period_s: float) -> None:
        replica.accepts = True
        has_successor = await may_refuse()
        replica.accepts = False
        await drain(replica, min_draining_period_s if has_successor else 0.0)

    Replica._drain_behind_haproxy = accept_and_drain


def run_router_here(handle: DeploymentHandle) -> None:
    """Have Ray push the deployment's running replicas into the running event loop, from now on.

    By default Ray makes the router at the handle's first use and, depending on Ray's flags, in a thread of
    its own. A request that is queued in such a thread cannot be taken back: it would wake a GPU for nothing.
    """
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=False)


def show_zero(counter: metrics.Counter, **tags: str) -> None:
    """Export `counter` before it has counted anything, with these `tags` beside its default ones.

    PromQL's `increase` and `rate` see differences only. If a series appears with its first increment, they
    miss that increment, and it may be the only one.
    """
    # `inc` refuses zero. The method that it calls after that check accepts zero.
    counter._record(0.0, tags)


def draw_class_ids_from_kernel() -> None:
    """Have Ray draw the ids of actor classes from the kernel. A zygote does this before it imports Ray Serve.

    Each `@ray.remote` class of a module draws a random id from a generator in Ray's C++ library. Once used,
    that generator is copied by a fork with its state, and all forks of a zygote then draw the same numbers.
    Ray makes the id of a task from such a number. So two engine replicas gave their calls of Serve's
    controller the same ids, and the controller died: `core_worker.cc: Check failed: erased == 1`.
    """
    import ray.actor  # noqa: PLC0415

    class ClassId(ray.actor.ActorClassID):  # type: ignore[misc]
        @classmethod
        def from_random(cls) -> ClassId:
            return cls(os.urandom(cls.size()))

    ray.actor.ActorClassID = ClassId


def use_setproctitle(setproctitle: Callable[[str], None]) -> None:
    """Have Ray set process titles with `setproctitle`, if Ray has been imported.

    Ray's own copy looks for the process's environment, and fails if another copy has moved the environment.
    """
    if raylet := sys.modules.get("ray._raylet"):
        raylet.setproctitle = setproctitle  # type: ignore[attr-defined]


@contextmanager
def keep_log_handlers() -> Iterator[None]:
    """Within the block, `logging.config.dictConfig` closes no handler that existed before the block.

    vLLM calls `dictConfig` when it is imported, and that closes every handler of the process. The log of a
    Ray Serve replica would end there, and later lines would pile up in memory. A restarted controller would
    stop the replica, because the controller asks a replica for the path of its log. `dictConfig` finds
    handlers in the list that `logging` keeps for its shutdown, so the block empties that list.
    """
    registered: list[Any] = logging._handlerList  # type: ignore[attr-defined]
    kept = registered[:]
    registered.clear()
    try:
        yield
    finally:
        registered[:0] = kept
