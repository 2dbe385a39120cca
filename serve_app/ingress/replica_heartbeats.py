"""Listening to the heartbeats of engine replicas, so that no request goes to one that hangs or is dead.

Ray stops listing a replica when three health checks have failed: 4 s after the death of an engine core, 18 s
after a process was stopped. What an ingress replica hears itself is half a second old.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from serve_app.ingress.replica_choice import Replica
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.wire.data_plane_headers import ALIVE, HEARTBEATS, TOKEN_HEADER

logger = logging.getLogger("ray.serve")

LOOK_INTERVAL_S = 0.25
SILENT_LOOKS = 12
"""Looks in a row without a heartbeat until a replica counts as silent: 3 s, six heartbeats. They are counted
in looks, not in seconds: while this process stands still it neither hears nor looks, by its own fault."""
_CONNECT_TIMEOUT_S = 3.0
_RETRY_S = 0.5


@dataclass(slots=True)
class _Listener:
    """One replica, and the task that listens to it."""

    replica: Replica
    task: asyncio.Task[None] | None = None
    silent_looks: int = 0


class Heartbeats:
    """Keeps the replicas of some deployments out of picks while they do not say that they are alive.

    Args:
        deployments: The running replicas of each, as Ray pushes them.
    """

    def __init__(self, deployments: Sequence[ReplicaSet]) -> None:
        self._deployments = deployments
        self._listeners: dict[Replica, _Listener] = {}
        self._session: aiohttp.ClientSession | None = None

    async def run(self) -> None:
        """Listen to whatever replicas there are, until cancelled."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
        ) as self._session:
            try:
                while True:
                    self.look()
                    await asyncio.sleep(LOOK_INTERVAL_S)
            finally:
                for listener in list(self._listeners.values()):
                    self._forget(listener)

    def look(self) -> None:
        """Listen to new replicas, stop listening to those that are gone, and notice which ones are silent."""
        listed = {replica: known for known in self._deployments for replica in known.listed()}
        for listener in [one for replica, one in self._listeners.items() if replica not in listed]:
            self._forget(listener)
        for replica, known in listed.items():
            if replica not in self._listeners:
                self._listeners[replica] = self._begin(replica, known)
            listener = self._listeners[replica]
            if listener.task is None or listener.task.done():
                continue
            listener.silent_looks += 1
            if listener.silent_looks >= SILENT_LOOKS and not replica.trouble:
                silent_s = SILENT_LOOKS * LOOK_INTERVAL_S
                self._keep_away(replica, known, f"it has sent no heartbeat for {silent_s:g} s")

    def _begin(self, replica: Replica, known: ReplicaSet) -> _Listener:
        listener = _Listener(replica)
        listener.task = asyncio.create_task(self._listen(listener, known))
        return listener

    async def _listen(self, listener: _Listener, known: ReplicaSet) -> None:
        replica = listener.replica
        try:
            while await self._hear(listener, known):
                pass
        except Exception:
            # Requests then go by what Ray says alone.
            logger.exception("replica %s: its heartbeats cannot be listened to", replica.replica_id)
            known.welcome(replica)

    async def _hear(self, listener: _Listener, known: ReplicaSet) -> bool:
        """Hear one connection to its end. Returns whether to try again."""
        assert self._session is not None
        replica = listener.replica
        url = f"http://{replica.address}{HEARTBEATS}"
        connected = False
        try:
            async with self._session.get(url, headers={TOKEN_HEADER: replica.token}) as response:
                if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
                    return False  # a version without heartbeats, about to be replaced
                response.raise_for_status()
                async for line in response.content:
                    connected = True
                    self._heard(listener, known, line.decode().strip())
        except (aiohttp.ClientError, OSError) as error:
            trouble = f"its data plane cannot be reached: {error}"
        else:
            trouble = "its data plane has closed"
        if not connected:  # otherwise try again at once: a connection may break, a dead process refuses
            self._keep_away(replica, known, trouble)
            await asyncio.sleep(_RETRY_S)
        return True

    def _heard(self, listener: _Listener, known: ReplicaSet, heartbeat: str) -> None:
        listener.silent_looks = 0
        replica = listener.replica
        if heartbeat != ALIVE:
            self._keep_away(replica, known, heartbeat)
        elif replica.trouble:
            logger.info("replica %s of %s is alive again", replica.replica_id, replica.address)
            known.welcome(replica)

    def _keep_away(self, replica: Replica, known: ReplicaSet, trouble: str) -> None:
        if not replica.trouble:
            logger.warning("no requests to replica %s: %s", replica.replica_id, trouble)
        known.keep_away(replica, trouble)

    def _forget(self, listener: _Listener) -> None:
        del self._listeners[listener.replica]
        if listener.task is not None:
            listener.task.cancel()
