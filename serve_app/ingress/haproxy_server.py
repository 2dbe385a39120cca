"""An ingress replica as a server of HAProxy: its Unix socket, and how long it accepts when it stops."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import ray
from ray.serve._private.common import ReplicaID, ReplicaState
from ray.serve._private.constants import RAY_SERVE_ENABLE_HA_PROXY, RAY_SERVE_HAPROXY_CONFIG_FILE_LOC
from starlette.middleware import Middleware

from serve_app.api.request_head import middlewares
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.serve_status import serve_status
from serve_app.patches.ray import accept_until
from serve_app.patches.ray_idle import report_changes
from serve_app.patches.uvicorn import listen_beside
from serve_app.wire.local_socket import local_socket

_SUCCESSOR_S = 120.0
"""The bound matters where a second ingress replica has no room: it starts when this one has ended."""
_LOOK_S = 0.5
_ANSWER_S = 2.0
_TAKEOVER_S = 10.0
"""After the successor runs, HAProxy loads its address: 1 s on a quiet machine, 5 s on a busy one."""
ACCEPT_S = _SUCCESSOR_S + _TAKEOVER_S
"""For so many seconds at most, a stopping replica accepts requests. Then it drains."""

ReplicaStates = Mapping[str, int]
"""The number of replicas of a deployment by state."""


def prepare_server() -> list[Middleware]:
    """Return the middlewares of an HTTP server of Ray Serve.

    Ray calls this in each ingress replica and in its own proxy, before it starts the server.
    """
    report_changes()
    return middlewares()


def serve_haproxy(replica: ReplicaID) -> None:
    """Make the HTTP server that Ray starts in this replica listen on a Unix socket too, and stop late.

    HAProxy of the same node connects to the socket. Each token is a write to its stream's connection. Over
    TCP the sender pays for both ends. With 256 streams the ingress spends 12 µs per token, instead of 18 over
    TCP (`docs/measurements.md`).
    """
    if not RAY_SERVE_ENABLE_HA_PROXY:
        return
    node = ray.get_runtime_context().get_node_id()
    folder = Path(RAY_SERVE_HAPROXY_CONFIG_FILE_LOC).parent / node  # as HAProxyManager has it
    listen_beside(folder / local_socket(replica.unique_id))
    app, deployment = replica.deployment_id.app_name, replica.deployment_id.name
    status = BoundedCall(
        f"Ray Serve's status of {deployment}", partial(serve_status, app, [deployment]), _LOOK_S
    )

    async def states() -> ReplicaStates | None:
        answer = await status.get(_ANSWER_S, since=time.monotonic())
        if answer is None:
            return None
        known = answer.value.deployments.get(deployment)
        return {} if known is None else known.replica_states

    accept_until(partial(wait_for_successor, states))


async def wait_for_successor(
    states: Callable[[], Awaitable[ReplicaStates | None]],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Return when this stopping replica may refuse connections, at the latest after `ACCEPT_S` seconds.

    It returns at once if another ingress replica runs, or if none will: then the application is deleted. It
    returns whether another one runs.

    Args:
        states: Returns the states of the ingress replicas, this one among them; None if Ray does not answer.
    """
    began = clock()
    waited = False
    while clock() < began + _SUCCESSOR_S:
        replicas = await states()
        if replicas is not None:
            if replicas.get(ReplicaState.RUNNING):
                if waited:
                    await sleep(_TAKEOVER_S)
                return True
            if not any(count for state, count in replicas.items() if state != ReplicaState.STOPPING):
                return False
        waited = True
        await sleep(_LOOK_S)
    return False
