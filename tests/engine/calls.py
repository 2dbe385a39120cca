"""Calls of an engine replica, as an ingress replica would send them."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from serve_app.api.engine_client import EngineClient, EngineReply, EngineRequest, Operation
from serve_app.api.trace import TraceContext
from serve_app.engine.continued_call import ContinuedCall
from serve_app.engine.engine_call import EngineCall
from serve_app.settings.caller import ANYONE, Caller
from serve_app.wire.data_plane import Call


def engine_call(
    operation: Operation,
    body: bytes,
    request_id: str = "r-1",
    arrived: float | None = None,
    *,
    caller: Caller = ANYONE,
    trace: TraceContext | None = None,
    queued_s: float = 0.0,
    **fields: Any,
) -> EngineCall:
    """Return a call that arrived at the ingress at `arrived`, by default now, with other `fields`."""
    waited_s = 0.0 if arrived is None else time.perf_counter() - arrived
    message = Call(0, operation, body, request_id, waited_s, queued_s, **fields)
    return changed(EngineCall(message), caller, trace)


def changed(
    call: EngineCall, caller: Caller | None = None, trace: TraceContext | None = None, **fields: Any
) -> EngineCall:
    """Return a call with other fields of its message."""
    if caller is not None:
        fields |= {"key": caller.key, "lane": caller.lane, "weight": caller.weight}
    if trace is not None:
        fields |= {"traceparent": trace.traceparent, "tracestate": trace.tracestate}
    message = msgspec.structs.replace(call.message, **fields)
    begun = message.continuation
    return EngineCall(message) if begun is None else ContinuedCall(message, begun)


class InProcess:
    """An engine behind the API without a data plane between them."""

    def __init__(self, engine: EngineClient[EngineCall]) -> None:
        self._engine = engine

    @asynccontextmanager
    async def call(self, request: EngineRequest) -> AsyncIterator[EngineReply]:
        async with self._engine.call(EngineCall(request.message(0, request.body))) as reply:
            yield reply
