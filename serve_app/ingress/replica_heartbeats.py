"""Listen to the heartbeats of engine replicas, so that no request goes to a replica that hangs or is dead.

Heartbeats also report the size of a replica's prefix cache, and prompts in it. They come every half second.
Ray stops listing a replica only after three failed health checks: 4 s after the death of an engine core, and
18 s after a process was stopped.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from serve_app.ingress.engine_channel import EngineChannels, NeverBegunError
from serve_app.ingress.replica import Replica
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.wire.data_plane import BEAT_S, Beat

logger = logging.getLogger("ray.serve")

LOOK_INTERVAL_S = 0.25
SILENT_LOOKS = 8
"""A replica is silent after so many looks in a row without a heartbeat: 2 s, or four heartbeats. Looks are
counted instead of seconds, because a replica is not at fault while this process itself stands still."""
SUSPECT_LOOKS = 4
"""After so many looks (1 s), a replica is picked only if no other has room. Otherwise streams that have just
lost a replica could go to another lost replica."""
_STILL_S = SILENT_LOOKS * LOOK_INTERVAL_S - BEAT_S
"""When a replica becomes silent, it has stood still for at least this long: a heartbeat was due within
`BEAT_S`."""
_RETRY_S = 0.5
MOST_INDEXED_TOKENS = 96_000_000
"""The cached tokens that an ingress replica knows of, over all engine replicas: 200 MiB of hashes. Of larger
caches it knows the part that was used last."""


@dataclass(slots=True)
class _Listener:
    """One replica, and the task that listens to it."""

    replica: Replica
    known: ReplicaSet
    task: asyncio.Task[None] = field(init=False)
    silent_looks: int = 0


class Heartbeats:
    """Keeps replicas out of picks while their heartbeats are missing or report trouble.

    Args:
        deployments: The running replicas of each deployment.
        channels: The connections for heartbeats and requests.
    """

    def __init__(self, deployments: Sequence[ReplicaSet], channels: EngineChannels) -> None:
        self._deployments = deployments
        self._channels = channels
        self._listeners: dict[Replica, _Listener] = {}

    async def run(self) -> None:
        """Listen to all replicas, until cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_INTERVAL_S)
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening, and end all channels."""
        for listener in list(self._listeners.values()):
            self._forget(listener)
        self._channels.close_all()

    def look(self) -> None:
        """Listen to new replicas, stop listening to replicas that are gone, and find silent ones.

        Heartbeats of a draining replica are heard until it has no request of this process.
        """
        listed = {replica: known for known in self._deployments for replica in known.listed()}
        for replica in [one for one in listed if one not in self._listeners]:
            listener = self._listeners[replica] = _Listener(replica, listed[replica])
            listener.task = asyncio.create_task(self._listen(listener))
        for replica, listener in list(self._listeners.items()):
            if replica not in listed and not replica.all_in_flight:
                self._forget(listener)
                self._channels.close(replica, "the replica is gone")
            elif self._is_silent(listener):
                silence_s = SILENT_LOOKS * LOOK_INTERVAL_S
                self._keep_away(listener, f"it has sent no heartbeat for {silence_s:g} s")

    def _is_silent(self, listener: _Listener) -> bool:
        if listener.task.done():
            return False
        listener.silent_looks += 1
        if listener.silent_looks == SUSPECT_LOOKS:
            listener.replica.failures += 1
        if listener.silent_looks < SILENT_LOOKS:
            return False
        listener.replica.still_s = _STILL_S + (listener.silent_looks - SILENT_LOOKS) * LOOK_INTERVAL_S
        return True

    async def _listen(self, listener: _Listener) -> None:
        replica, known = listener.replica, listener.known
        while True:
            try:
                await self._follow(listener)
            except Exception:
                # Until the next try, only Ray's list decides.
                logger.exception("replica %s: cannot listen to its heartbeats", replica.replica_id)
                known.note_reachable(replica)
                known.welcome(replica)
                await asyncio.sleep(_RETRY_S)

    async def _follow(self, listener: _Listener) -> None:
        replica = listener.replica
        try:
            channel = await self._channels.to(replica)
        except NeverBegunError as error:
            # A broken connection is opened again at once. A dead process refuses connections.
            self._keep_away(listener, f"its data plane cannot be reached: {error}")
            await asyncio.sleep(_RETRY_S)
            return
        self._record(listener, channel.beat)
        channel.on_beat = partial(self._record, listener)
        await asyncio.shield(channel.lost)

    def _record(self, listener: _Listener, beat: Beat) -> None:
        listener.silent_looks = 0
        replica, known = listener.replica, listener.known
        replica.still_s = beat.still_s
        if beat.prefix_cache_tokens is not None:
            most = MOST_INDEXED_TOKENS // len(self._listeners)
            known.prefixes.resize(replica.replica_id, min(beat.prefix_cache_tokens, most))
        if beat.step_tokens:
            known.choice.of(replica.variant).step_tokens = beat.step_tokens
        if replica.adapters or beat.adapters:
            known.note_adapters(replica, beat.adapters)
        replica.adapter_load_s = beat.adapter_load_s
        replica.first_runs_left = beat.first_runs_left
        replica.unwritten_s = beat.unwritten_s
        known.note_end(replica, beat.ends_in_s)
        for prefix in beat.prefixes:
            known.prefixes.add(replica.replica_id, prefix)
        if beat.trouble:
            self._keep_away(listener, beat.trouble)
            return
        known.note_reachable(replica)
        if replica.trouble:
            logger.info("replica %s of %s is alive again", replica.replica_id, replica.address)
            known.welcome(replica)

    def _keep_away(self, listener: _Listener, trouble: str) -> None:
        replica = listener.replica
        if not replica.trouble:
            logger.warning("no requests to replica %s: %s", replica.replica_id, trouble)
        listener.known.keep_away(replica, trouble)

    def _forget(self, listener: _Listener) -> None:
        del self._listeners[listener.replica]
        listener.task.cancel()
