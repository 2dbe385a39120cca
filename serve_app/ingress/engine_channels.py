"""The connections of this ingress replica to engine replicas: one to each, shared by all its requests."""

import asyncio
from functools import partial

from serve_app.ingress.engine_channel import EngineChannel
from serve_app.ingress.replica_choice import Replica

_CONNECT_TIMEOUT_S = 3.0


class EngineChannels:
    """Opens a channel to a replica where there is none, and keeps it."""

    def __init__(self) -> None:
        self._opening: dict[Replica, asyncio.Task[EngineChannel]] = {}

    async def to(self, replica: Replica) -> EngineChannel:
        """The channel to `replica`.

        Raises:
            NeverBegunError: it cannot be reached, or refuses.
        """
        opening = self._opening.get(replica)
        if opening is None or (opening.done() and self.at_hand(replica) is None):
            connecting = EngineChannel.connect(replica.address, replica.token, _CONNECT_TIMEOUT_S)
            opening = self._opening[replica] = asyncio.create_task(connecting)
        return await asyncio.shield(opening)  # others may wait for it too

    def at_hand(self, replica: Replica) -> EngineChannel | None:
        """The channel to `replica` if there is one now."""
        opening = self._opening.get(replica)
        if opening is None or not opening.done() or opening.cancelled() or opening.exception():
            return None
        channel = opening.result()
        return None if channel.lost.done() else channel

    def close(self, replica: Replica, reason: str) -> None:
        """End the channel to `replica`; its requests are told that the replica is lost.

        One that is being opened is closed once it is open. Cancelled, it would cancel the requests that wait
        for it, as if their clients had left.
        """
        opening = self._opening.pop(replica, None)
        if opening is not None:
            opening.add_done_callback(partial(_close_opened, reason))

    def close_all(self) -> None:
        """End all of them."""
        for replica in list(self._opening):
            self.close(replica, "this ingress replica ends")


def _close_opened(reason: str, opening: asyncio.Task[EngineChannel]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close(reason)
