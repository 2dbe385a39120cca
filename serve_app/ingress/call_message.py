"""A request as the data plane carries it to an engine replica."""

from serve_app.api.engine_client import EngineRequest
from serve_app.wire.continuation import Continuation
from serve_app.wire.data_plane import Call, Prefix


def call_message(
    request: EngineRequest,
    body: bytes,
    stream: int,
    continuation: Continuation | None = None,
    expected_cached_tokens: int | None = None,
) -> Call:
    """The message that hands `request` with `body` over, and the delivered part of its answer."""
    trace, prefix = request.trace, request.prefix
    return Call(
        stream,
        request.operation,
        body,
        request.request_id,
        request.waited_s,
        request.state.queued_s,
        continuation,
        "" if trace is None else trace.traceparent,
        "" if trace is None else trace.tracestate,
        expected_cached_tokens,
        None if prefix is None else Prefix(list(prefix.blocks), prefix.end, prefix.session),
        cache_salt=request.cache_salt,
    )
