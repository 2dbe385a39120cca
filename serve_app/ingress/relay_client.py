"""The fast data plane: bytes relayed, unparsed, from the replica that was picked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.ingress.admission import Admission
from serve_app.ingress.engine_channels import EngineChannels
from serve_app.ingress.relayed_request import RelayedRequest
from serve_app.ingress.replica_choice import Replica
from serve_app.settings.tree import ModelSettings


class RelayClient:
    """Reaches a model's engine replicas over the ports they open.

    Args:
        admission: Finds replicas, and holds requests while there is none.
        channels: The connections to engine replicas, shared with whatever listens to their heartbeats.
    """

    def __init__(self, model: ModelSettings, admission: Admission, channels: EngineChannels) -> None:
        self._model = model.name
        self._hang_timeout_s = model.engine_hang_timeout_s
        self._admission = admission
        self._channels = channels
        admission.replicas.notify_trouble(self._give_up)

    @asynccontextmanager
    async def call(self, request: EngineRequest) -> AsyncIterator[EngineReply]:
        """Run `request` on a replica. One that is lost is replaced, within a stream too where it can be.

        Raises:
            ApiError: no replica could take it, or replicas were lost one after another.
        """
        relayed = RelayedRequest(self._model, request, self._admission, self._channels)
        try:
            answer = await relayed.begin()
            headers = {name: value for name, value in answer.headers.items() if name == "Retry-After"}
            if answer.streamed:
                yield EngineReply(answer.status, stream=relayed.events(answer), headers=headers)
            else:
                yield EngineReply(answer.status, answer.body, headers=headers)
        finally:
            relayed.end()

    def _give_up(self, replica: Replica) -> None:
        """Send the requests on a replica that hangs or is dead to another one of the same model.

        If there is none, they stay until the replica works again or Ray replaces it. Ray does not check a
        draining replica: they leave it after the same time.
        """
        hung = replica.unlisted_at is not None and replica.still_s >= self._hang_timeout_s
        if hung or self._admission.replicas.has_substitute(replica):
            self._channels.close(replica, replica.trouble)
