"""The fast data plane: bytes relayed, unparsed, over HTTP from the replica that was picked."""

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus

import aiohttp

from serve_app.api.engine_client import EVENT_STREAM, JSON, EngineReply, EngineRequest
from serve_app.ingress.admission import Admission
from serve_app.ingress.refusals import unavailable
from serve_app.ingress.relay_faults import NeverBegunError, not_an_answer, raise_if_dead
from serve_app.ingress.replica_choice import Replica, Slot
from serve_app.ingress.stream_relay import first_frames, relay
from serve_app.settings.tree import ModelSettings
from serve_app.wire.data_plane_headers import HELD_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER, WAITED_HEADER

logger = logging.getLogger("ray.serve")

# Ray needs about 4 s to take a replica whose engine core died out of its routing (three health
# checks, one a second); the waits of 0.2, 0.4, … s between seven attempts outlast that.
_ATTEMPTS = 7
_BACKOFF_S = 0.2
# An engine that dies with a request may have died of it. One more try, not one replica after another.
_DEATHS = 2
_ONE_PIECE_BYTES = 1 << 20
_LOST = (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError)


class RelayClient:
    """Reaches a model's engine replicas over the ports they open.

    Args:
        admission: Finds replicas, and holds requests while there is none.
    """

    def __init__(self, model: ModelSettings, admission: Admission) -> None:
        self._model = model.name
        self._admission = admission
        self._session: aiohttp.ClientSession | None = None
        self._unanswered: dict[Replica, set[asyncio.Timeout]] = {}
        admission.replicas.notify_trouble(self._give_up)

    @asynccontextmanager
    async def call(self, request: EngineRequest) -> AsyncIterator[EngineReply]:
        """Run `request` on a replica. As long as nothing has been sent, a lost replica is replaced."""
        lost: Exception | None = None
        deaths = 0
        for attempt in range(1, _ATTEMPTS + 1):
            async with AsyncExitStack() as stack:
                slot = await self._admission.take(request, again=attempt > 1)
                stack.callback(self._admission.replicas.release, slot)
                try:
                    async with self._while_well(slot.replica):
                        reply = await self._open(request, slot, stack)
                except _LOST as error:
                    logger.warning("request %s: replica lost: %r", request.request_id, error)
                    lost = error
                    deaths += not isinstance(error, NeverBegunError)
                else:
                    yield reply
                    return
            if deaths == _DEATHS:
                break
            # Outside the stack: the lost replica is not counted as busy while Ray finds out about it.
            await asyncio.sleep(_BACKOFF_S * attempt)
        raise unavailable(self._model, "replicas were lost one after another.") from lost

    @asynccontextmanager
    async def _while_well(self, replica: Replica) -> AsyncIterator[None]:
        """Wait for the first of an answer, but not from a replica that hangs while another one is there.

        Raises:
            ConnectionError: as if the replica were gone.
        """
        waiting = self._unanswered.setdefault(replica, set())
        limit = asyncio.timeout(None)
        waiting.add(limit)
        try:
            async with limit:
                yield
        except TimeoutError:
            if limit.expired():
                raise ConnectionError(f"{replica.address}: {replica.trouble}") from None
            raise
        finally:
            waiting.discard(limit)
            if not waiting and self._unanswered.get(replica) is waiting:
                del self._unanswered[replica]

    def _give_up(self, replica: Replica) -> None:
        """Send the requests that `replica` has not answered to another one, if there is another."""
        if len(self._admission.replicas):
            now = asyncio.get_running_loop().time()
            for limit in self._unanswered.pop(replica, ()):
                limit.reschedule(now)

    async def _open(self, request: EngineRequest, slot: Slot, stack: AsyncExitStack) -> EngineReply:
        replica = slot.replica
        response = await self._post(request, replica, stack)
        if response.ok:  # the replica sends its headers with the first event, or with the whole answer
            self._admission.replicas.answered(slot)
        if response.status == HTTPStatus.FORBIDDEN or response.content_type not in (JSON, EVENT_STREAM):
            raise not_an_answer(response, replica)
        headers = {name: value for name, value in response.headers.items() if name == "Retry-After"}
        if response.content_type != EVENT_STREAM:
            body = await response.read()
            if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
                raise_if_dead(body, replica)
            return EngineReply(response.status, body, headers=headers)
        chunks = response.content.iter_any()
        first, rest = await first_frames(chunks)
        if not first:
            raise aiohttp.ClientPayloadError("the stream ended before its first frame")
        stream = relay(first, rest, chunks, _LOST, self._model)
        return EngineReply(response.status, stream=stream, headers=headers)

    async def _post(
        self, request: EngineRequest, replica: Replica, stack: AsyncExitStack
    ) -> aiohttp.ClientResponse:
        headers = {
            TOKEN_HEADER: replica.token,
            REQUEST_ID_HEADER: request.request_id,
            WAITED_HEADER: f"{request.waited_s:.6f}",
        }
        if request.held_s:
            headers[HELD_HEADER] = f"{request.held_s:.6f}"
        call = self._connections().post(
            f"http://{replica.address}/{request.operation}",
            # aiohttp sends bytes in one piece, which a large body should not be.
            data=request.body if len(request.body) < _ONE_PIECE_BYTES else io.BytesIO(request.body),
            headers=headers,
        )
        try:
            return await stack.enter_async_context(call)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            replica.failures += 1
            raise NeverBegunError(f"{replica.address}: {error}") from error

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:  # needs the running loop, which a constructor may not have
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                timeout=aiohttp.ClientTimeout(total=None, connect=5),
                auto_decompress=False,
            )
        return self._session
