"""Calls of the batch runner: each brings some lines of one batch, and streams their answers back."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import suppress

from serve_app.api.batch_lines import BatchLines
from serve_app.api.endpoints import Endpoints
from serve_app.api.errors import ApiError
from serve_app.ingress.admission import release_limit
from serve_app.ingress.replica_set import replica_set
from serve_app.settings.knobs import LiveKnobs
from serve_app.settings.tree import ModelSettings
from serve_app.wire.batches import BatchLine, LineAnswer, LineAnswers

_GATHER_S = 0.02
"""How long an answer waits for others. A message from Ray costs about a millisecond at both ends."""
_SILENCE_S = 2.0
"""A call says something at least so often, so that the runner learns how many lines are wanted."""


class BatchCalls:
    """Runs the lines of calls in this ingress replica. Use it in one event loop."""

    def __init__(
        self, endpoints: Endpoints, lines: BatchLines, models: Iterable[ModelSettings], knobs: LiveKnobs
    ) -> None:
        self._endpoints = endpoints
        self._lines = lines
        self._models = {model.name: model for model in models}
        self._knobs = knobs

    async def answer(
        self, owner: str, batch_id: str, url: str, model: str, lines: Iterable[BatchLine]
    ) -> AsyncGenerator[LineAnswers]:
        """Yield the answers to `lines` as they become ready. Closing frees the lines that still run."""
        running = {asyncio.create_task(self._lines.answer(owner, batch_id, url, line)) for line in lines}
        try:
            yield LineAnswers((), *self.wanted(model))  # so that the runner sends more at once
            async for answers in in_parts(running):
                yield LineAnswers(answers, *self.wanted(model))
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def wanted(self, asked: str) -> tuple[str, int]:
        """Return the served model that a client asks for, and how many lines should be in flight in all.

        By default these are twice the places in the batches of the replicas that are up: one half runs, and
        the other half waits in the queues of ingress replicas, so that no batch has a gap. Without a replica
        these are the places of one.
        """
        with suppress(ApiError):
            settings = self._models[self._endpoints.find(asked).name]
            knob = self._knobs.of(settings.name).batch_concurrency
            replicas = max(1, len(replica_set(settings.deployment_name)))
            return settings.name, 2 * replicas * release_limit(settings) if knob is None else knob
        return "", 1  # its lines get the error


async def in_parts(running: set[asyncio.Task[LineAnswer]]) -> AsyncIterator[tuple[LineAnswer, ...]]:
    """Yield the results of `running` as they become ready, those of 20 ms together.

    An empty part is yielded after 2 s without a result.
    """
    waiting = set(running)
    while waiting:
        done, _ = await asyncio.wait(waiting, timeout=_SILENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if done and len(done) < len(waiting):
            await asyncio.sleep(_GATHER_S)
            done = {task for task in waiting if task.done()}
        waiting -= done
        yield tuple(task.result() for task in done)
