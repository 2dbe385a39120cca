"""Turns that Ray Serve's control loop leaves out while there is nothing to do.

Ray's controller takes ten turns a second. Each copies every deployment's description, asks the policy, and
compares all that should be with all that is: 3 ms, four fifths of which find nothing changed. A turn is left
out only if the last one was less than half a second ago and everything is as it should be. So what starts,
stops, fails or is asked for at zero still has ten turns a second, and the policy decides as often as before.
"""

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from ray.serve._private.application_state import ApplicationStateManager
from ray.serve._private.autoscaling_state import AutoscalingStateManager
from ray.serve._private.common import DeploymentStatus, ReplicaState
from ray.serve._private.deployment_state import DeploymentState, DeploymentStateManager
from ray.serve._private.proxy_state import ProxyStateManager
from ray.serve.schema import ApplicationStatus, ProxyStatus

from serve_app.wire.signals import ingress_key

logger = logging.getLogger("ray.serve")

QUIET_INTERVAL_S = 0.5
"""As often as the policy decides."""
_HELD = ingress_key("", "held_requests")


class QuietTurns:
    """Says which turns of the control loop are taken: all of them until all three managers are known."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken_at = float("-inf")
        self._woken = False
        self._failed = False
        self.taken = True
        """Whether the present turn is taken."""
        self.applications: Any = None
        self.proxies: Any = None

    def begin(self, deployments: Any) -> bool:
        """Begin a turn with Ray's manager of deployments; return whether it is taken."""
        now = self._clock()
        due = self._woken or now - self._taken_at >= QUIET_INTERVAL_S
        self.taken = due or not self._settled(deployments)
        if self.taken:
            self._taken_at = now
            self._woken = False
        return self.taken

    def wake(self) -> None:
        """Have the next turn taken."""
        self._woken = True

    def _settled(self, deployments: Any) -> bool:
        if self.applications is None or self.proxies is None:
            return False
        try:
            return (
                all(map(_deployment_settled, deployments._deployment_states.values()))
                and all(
                    state.status is ApplicationStatus.RUNNING
                    for state in self.applications._application_states.values()
                )
                and all(
                    state.status is ProxyStatus.HEALTHY
                    for state in (*self.proxies._proxy_states.values(), self.proxies._fallback_proxy_state)
                    if state is not None
                )
            )
        except Exception:
            if not self._failed:
                logger.exception(
                    "whether the control loop has anything to do cannot be told: it takes every turn"
                )
            self._failed = True
            return False


def leave_out_quiet_turns(turns: QuietTurns) -> None:
    """Have the control loop of this process take the turns that `turns` says."""
    update_deployments = DeploymentStateManager.update
    update_applications = ApplicationStateManager.update
    update_proxies = ProxyStateManager.update
    record = AutoscalingStateManager.record_request_metrics_for_replica

    @wraps(update_deployments)
    def deployments(manager: Any, *args: Any, **named: Any) -> bool:
        # False: a replica that recovers would not be settled.
        return turns.begin(manager) and bool(update_deployments(manager, *args, **named))

    @wraps(update_applications)
    def applications(manager: Any) -> None:
        turns.applications = manager
        if turns.taken:
            update_applications(manager)

    @wraps(update_proxies)
    def proxies(manager: Any, *args: Any, **named: Any) -> None:
        turns.proxies = manager
        if turns.taken:
            update_proxies(manager, *args, **named)

    @wraps(record)
    def report(manager: Any, received: Any) -> None:
        record(manager, received)
        if _holds_requests(received.metrics):
            turns.wake()

    DeploymentStateManager.update = deployments
    ApplicationStateManager.update = applications
    ProxyStateManager.update = proxies
    AutoscalingStateManager.record_request_metrics_for_replica = report


def _deployment_settled(state: DeploymentState) -> bool:
    """Return whether it has its replicas, no others, and none that has failed its last health check."""
    running = state._replicas.get([ReplicaState.RUNNING])
    return (
        state.curr_status_info.status is DeploymentStatus.HEALTHY
        and len(running) == state._replicas.count() == state.target_num_replicas
        and not any(replica._actor._consecutive_health_check_failures for replica in running)
    )


def _holds_requests(metrics: Any) -> bool:
    """Return whether an ingress replica's report tells of held requests, which may want a replica at once."""
    return any(name.endswith(_HELD) and series and series[-1].value > 0 for name, series in metrics.items())
