"""Changes that let Ray Serve rest while nothing changes. Ray is imported inside the functions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ray.serve._private.controller import ServeController

M = TypeVar("M")

UNCHANGED_S = 4.0
"""A report that equals the last one is sent this much later. The policy uses a report for 10 s, and so it can
tell an unchanged report from a missing one."""
QUIET_S = 1.0
"""The longest time between two turns of the control loop. Each turn starts the health checks that are due."""
_AGAIN_S = 0.5
"""A turn for a report is followed by another after this time: the policy decides at most twice a second, and
may have passed over the report."""


class Rest:
    """When the controller of this process takes its next turn."""

    def __init__(self) -> None:
        self.quiet = False
        """Whether nothing was in transition at the last turn."""
        self.checks_all = False
        """Whether the last turn was the regular one of its second. Others check as few replicas as Ray's."""
        self._next_at = 0.0
        self._again_at = math.inf
        self._news = False

    def wake(self) -> None:
        """Have the controller take a turn within its own interval of 0.1 s."""
        self._news = True

    def is_due(self, quiet: bool, awaits_checks: bool, now: float) -> bool:
        """Return whether to take a turn at `now`, in seconds. Each transition is followed by one more turn.

        Args:
            quiet: Whether nothing is in transition.
            awaits_checks: Whether a health check has not been answered yet.
            now: The present time.
        """
        if quiet and not awaits_checks and not self._news and now < min(self._next_at, self._again_at):
            return False
        if self._news:
            self._again_at = now + _AGAIN_S
        elif now >= self._again_at:
            self._again_at = math.inf
        self.quiet, self._news = quiet, False
        self.checks_all = quiet and now >= self._next_at
        if not quiet:
            self._next_at = now
        elif self.checks_all:
            self._next_at = now + QUIET_S
        return True


REST = Rest()
"""Of Ray Serve's controller, which runs in a process of its own."""


def wake_controller() -> None:
    """Have the controller of this process call the policy again within 0.1 s."""
    REST.wake()  # Ray pickles the policy's module with its globals, so the policy cannot use `REST`


def controller_rests() -> bool:
    """Whether nothing was in transition when the controller of this process took its last turn."""
    return REST.quiet


def rest_while_quiet() -> None:
    """Have the Serve controller of this process skip the turns of its control loop that would change nothing.

    Ray takes ten turns a second. A turn checks every deployment, application and proxy, and calls the policy.
    While nothing is in transition, a turn is needed for a new report, for the answer to a health check, and
    once a second to start health checks.
    """
    from ray._private.worker import global_worker  # noqa: PLC0415
    from ray.serve._private.autoscaling_state import AutoscalingStateManager  # noqa: PLC0415

    for controller in global_worker.actors.values():
        skip_idle_turns(controller)
    for name in (
        "record_request_metrics_for_replica",
        "record_request_metrics_for_handle",
        "record_columnar_metrics_for_handle",
    ):
        setattr(AutoscalingStateManager, name, _wake_first(getattr(AutoscalingStateManager, name)))


def skip_idle_turns(controller: ServeController) -> None:
    """Have a controller skip the turns that are not due, by `REST`.

    The object is changed, because Ray copies the methods of an actor's class before it makes the actor.
    """
    from ray.serve._private import deployment_state  # noqa: PLC0415

    turn, interval_s = controller.run_control_loop_step, deployment_state.CONTROL_LOOP_INTERVAL_S

    async def turn_if_due(*arguments: Any) -> None:
        try:
            quiet, awaits = is_quiet(controller), awaits_checks(controller)
        except AttributeError:  # another release of Ray, whose controller must still take its turns
            quiet = awaits = False
        if REST.is_due(quiet, awaits, time.monotonic()):
            # From this interval, Ray computes which share of the replicas a turn checks.
            deployment_state.CONTROL_LOOP_INTERVAL_S = QUIET_S if REST.checks_all else interval_s
            await turn(*arguments)

    controller.run_control_loop_step = turn_if_due


def _wake_first(record: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def wake_and_record(manager: Any, report: Any) -> None:
        REST.wake()
        record(manager, report)

    return wake_and_record


def is_quiet(controller: ServeController) -> bool:
    """Return whether no application, deployment, proxy or node of Ray Serve is in transition."""
    deployments = controller.deployment_state_manager._deployment_states.values()
    applications = controller.application_state_manager._application_states.values()
    return (
        controller.done_recovering_event.is_set()
        and not controller._shutting_down
        and not controller.cluster_node_info_cache.get_draining_nodes()
        and all(each.status == "RUNNING" for each in applications)
        and all(proxy.status == "HEALTHY" for proxy in controller.proxy_state_manager._proxy_states.values())
        and not any(each._in_transition or each._is_gang_deployment for each in deployments)
    )


def awaits_checks(controller: ServeController) -> bool:
    """Return whether a health check of a replica or a proxy has not been answered yet."""
    deployments = controller.deployment_state_manager._deployment_states.values()
    return any(each._outstanding_dirty_set for each in deployments) or any(
        proxy._actor_proxy_wrapper._health_check_future is not None
        for proxy in controller.proxy_state_manager._proxy_states.values()
    )


def report_changes() -> None:
    """Have the replicas, handles and proxies of this process send only reports that have changed.

    Ray sends the autoscaling reports of a replica and of each handle at every interval, twice a second for
    the ingress. Each is a call of Serve's controller.
    """
    from ray._private.worker import global_worker  # noqa: PLC0415
    from ray.serve._private.replica import ReplicaMetricsManager  # noqa: PLC0415
    from ray.serve._private.router import RouterMetricsManager  # noqa: PLC0415

    ReplicaMetricsManager._push_autoscaling_metrics = only_changes(
        ReplicaMetricsManager._push_autoscaling_metrics,
        lambda manager: tuple(
            (name, series[-1].value) for name, series in manager._metrics_store.data.items() if series
        ),
    )
    RouterMetricsManager.push_autoscaling_metrics_to_controller = only_changes(
        RouterMetricsManager.push_autoscaling_metrics_to_controller,
        lambda manager: (manager.num_queued_requests, *manager.num_requests_sent_to_replicas.items()),
    )
    for actor in global_worker.actors.values():
        manager = getattr(getattr(actor, "_replica_impl", None), "_metrics_manager", None)
        if manager is not None and manager._autoscaling_config is not None:
            manager.start_metrics_pusher()  # it holds the unpatched method


def only_changes(
    push: Callable[[M], None],
    newest: Callable[[M], Hashable],
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[M], None]:
    """Return `push`, which sends a report whose `newest` values equal the last ones only every 4 s."""

    def push_if_changed(manager: Any) -> None:
        now, values = clock(), newest(manager)
        last, due_at = getattr(manager, "pushed", (None, now))
        if values == last and now < due_at:
            return
        before = manager._pending_metrics_push_ref
        push(manager)
        if manager._pending_metrics_push_ref is not before:  # Ray sends nothing while a report is under way
            manager.pushed = values, now + UNCHANGED_S

    return push_if_changed
