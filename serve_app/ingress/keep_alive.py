"""Keep-alives: a client that waits for output is told so every `keep_alive_interval_s`.

A client may wait for a replica, for an adapter or for a long prompt. In the lane `background` it may wait for
hours, also after its first token.
"""

import asyncio
import math
from collections.abc import Callable

from serve_app.api.dialect import ColdWait
from serve_app.api.engine_client import EngineRequest
from serve_app.ingress.cold_start_progress import ColdStartProgress


def wake(waiter: asyncio.Future[bool], due: bool = False) -> None:
    """End a wait. `due` says that nothing has come: the time is over."""
    if not waiter.done():
        waiter.set_result(due)


class KeepAlive:
    """Tells the clients of one model that they wait.

    Args:
        model: The name of the model.
        interval_s: Returns the seconds without output after which a client is told.
        clock: Seconds.
    """

    def __init__(self, model: str, interval_s: Callable[[], float], clock: Callable[[], float]) -> None:
        self._model = model
        self._interval_s = interval_s
        self._clock = clock

    def begin(self, request: EngineRequest) -> None:
        """Count the silence of the client from now on."""
        request.silent_since, request.told_at = self._clock(), None

    async def wait(
        self,
        request: EngineRequest,
        waiter: asyncio.Future[bool],
        progress: Callable[[], ColdStartProgress],
        since: float | None = None,
        due: float = math.inf,
    ) -> None:
        """Wait until `waiter` is done, and tell the client if that is due. The caller repeats it.

        Args:
            request: Its `silent_since` becomes None when its client gets output.
            waiter: Done with False when something comes. At `due` it is done with True. `asyncio.wait` with a
                timeout would take 5 us more, for every stream.
            progress: Returns the progress that the client is told.
            since: Since when the client waits; by default since its last output.
            due: When the wait ends in any case.
        """
        if request.silent_since is None:
            self.begin(request)
        assert request.silent_since is not None
        last = request.silent_since if request.told_at is None else request.told_at
        tell_at = last + self._interval_s()
        delay_s = max(0.0, min(tell_at, due) - self._clock())
        timer = asyncio.get_running_loop().call_later(delay_s, wake, waiter, True)
        try:
            timed_out = await waiter
        finally:
            timer.cancel()
        now = self._clock()
        if not timed_out or now < tell_at or request.silent_since is None:
            return
        request.told_at = now
        if request.tell_wait is not None:
            told, waited_s = progress(), now - (request.silent_since if since is None else since)
            wait = ColdWait(self._model, told.phase, told.eta_s, waited_s, told.reason, told.place)
            await request.tell_wait(wait)
