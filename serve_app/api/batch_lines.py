"""Answers lines of batches. A line is a request like any other, in the lane `background`.

It passes through the same checks, limits, queue and counters. Only the HTTP connection is missing: the
response writes into memory.
"""

import logging
import time
import uuid
from dataclasses import dataclass

from starlette.types import Message

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.dialect import dialect_at
from serve_app.api.endpoints import Endpoints, operation_at
from serve_app.api.engine_response import stays
from serve_app.api.errors import TRACE_ID, ApiError, internal_error
from serve_app.api.request_head import RequestHead, RequestTraces
from serve_app.api.trace import UNTRACED, Trace
from serve_app.cancellation import only_own_cancellation
from serve_app.settings.caller import ANYONE
from serve_app.wire.batches import BatchLine, LineAnswer
from serve_app.wire.spans import batch_root

logger = logging.getLogger("ray.serve")


@dataclass(slots=True, eq=False)
class BatchLines:
    """Runs lines for the owners of batches."""

    endpoints: Endpoints
    api_keys: ApiKeyFile | None
    """The keys in force; None if no key is needed."""
    share_prefix_cache: bool
    """Whether clients with different keys share prefix caches."""
    traces: RequestTraces
    """The traces of requests. That of a line links to the trace of its batch."""

    async def answer(self, owner: str, batch_id: str, url: str, line: BatchLine) -> LineAnswer:
        """Return the answer to `line`, whose batch belongs to the API key `owner`. Errors are answers too.

        Cancelling frees the line's sequences in the engine.
        """
        # Not the id of an earlier attempt, which an engine may still run.
        request_id = f"batch_req_{uuid.uuid4().hex}"
        received = _Received()
        trace = self.traces.begin(url, (), time.perf_counter(), [batch_root(batch_id)])
        TRACE_ID.set("" if trace is None else trace.context.trace_id)
        try:
            with only_own_cancellation():
                sender = await self._sender(owner, request_id, trace or UNTRACED)
                share = self.endpoints.share(sender, line.body)
                operation = operation_at(url)
                response = await self.endpoints.respond(operation, line.body, sender, share, whole=True)
                await response({"type": "http"}, stays, received.send)
        except ApiError as error:
            received.fail(error, url, request_id)
        except Exception:
            logger.exception("request %s: failed", request_id)
            received.fail(internal_error(), url, request_id)
        finally:
            if trace is not None:
                if received.status:
                    trace.note_status(received.status)
                self.traces.end(trace)
        return LineAnswer(
            line.number, request_id, received.status, bytes(received.body), received.retry_after_s
        )

    async def _sender(self, owner: str, request_id: str, trace: Trace) -> RequestHead:
        if self.api_keys is None:
            return RequestHead(request_id, ANYONE.lowered_to("background"), trace=trace)
        await self.api_keys.refresh()
        key = self.api_keys.named(owner)
        salt = "" if self.share_prefix_cache else key.cache_salt
        return RequestHead(request_id, key.caller.lowered_to("background"), key, salt, trace=trace)


class _Received:
    """An HTTP response in memory."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self.retry_after_s = 0.0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self._note(headers)
        else:
            self.body += message.get("body", b"")

    def fail(self, error: ApiError, url: str, request_id: str) -> None:
        self.status = error.status
        self.body[:] = dialect_at(url).error_body(error, request_id)
        self._note({name.lower(): value for name, value in error.headers.items()})

    def _note(self, headers: dict[str, str]) -> None:
        if (exact := headers.get("retry-after-ms")) is not None:
            self.retry_after_s = float(exact) / 1e3
        else:
            self.retry_after_s = float(headers.get("retry-after", 0))
