"""What every endpoint of an engine operation does: read the body within bounds, find the model, answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import Response

from serve_app.api.body import check_structure, peek, read_body
from serve_app.api.body_memory import KEPT, BodyMemory, BodyShare
from serve_app.api.browsers import check_content_type
from serve_app.api.engine_client import EngineRequest, Operation
from serve_app.api.engine_response import EngineResponse
from serve_app.api.errors import ApiError, deadline_exceeded, no_such_model
from serve_app.api.models import ApiModel
from serve_app.api.prompt_prefix import PromptFields, prompt_prefix
from serve_app.api.ray_headers import request_timeout_s
from serve_app.api.session_id import session_of
from serve_app.api.trace_context import TraceContext
from serve_app.settings.tree import HttpSettings


@dataclass(frozen=True, slots=True)
class Seen:
    """What a body shows of a request."""

    model: ApiModel
    wants_stream: bool
    fields: PromptFields | None
    """Of its prompt; None where there is none."""


class Endpoints:
    """Answers requests for the models of one application, within the bounds on their bodies."""

    def __init__(self, served: Sequence[ApiModel], bounds: HttpSettings) -> None:
        self.models = {model.name: model for model in served}
        self._bounds = bounds
        self._memory = BodyMemory(bounds.max_body_memory_bytes)

    def find(self, name: str | None) -> ApiModel:
        """The model called `name`; the only model, if none is named. Raises ApiError 404 or 400."""
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name is None or name not in self.models:
            raise no_such_model(name, self.models)
        return self.models[name]

    def openai(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of `operation`, whose body only the engine replica validates."""
        streamable = operation in ("chat_completions", "completions")

        def read(body: bytes) -> Seen:
            seen = peek(body)
            model = self.find(seen.model)
            return Seen(model, seen.stream is True, seen) if streamable else Seen(model, False, None)

        async def endpoint(request: Request) -> Response:
            return await self.answer(request, operation, read)

        return endpoint

    async def answer(self, http: Request, operation: Operation, read: Callable[[bytes], Seen]) -> Response:
        """The engine's answer. `read` tells what the ingress needs to know of a body."""
        check_content_type(http.scope["headers"])
        timeout_s = request_timeout_s(http.scope)
        state = http.state
        key = getattr(state, "api_key", None)
        share = BodyShare(self._memory, key)
        try:
            body = await self._read(http, share, timeout_s)
            await check_structure(body)
            seen = read(body)
            model = seen.model
            salt = getattr(state, "cache_salt", "")
            session = session_of(http.scope["headers"], key)
            request = EngineRequest(
                operation,
                body,
                state.request_id,
                state.arrived,
                seen.wants_stream,
                timeout_s,
                TraceContext.of(http.scope["headers"]),
                salt,
                None if seen.fields is None else prompt_prefix(seen.fields, session, salt),
                BodyShare(self._memory, KEPT) if seen.wants_stream else None,
            )
            try:
                share.belongs_to(model.name)
            except ApiError as error:
                model.traffic.rejected(request, error)
                raise
            return EngineResponse(model.engine, request, model.traffic, share.release)
        except BaseException:
            share.release()
            raise

    async def _read(self, http: Request, share: BodyShare, timeout_s: float | None) -> bytes:
        """The body, within the settings' bounds and the client's own deadline."""
        due = None
        if timeout_s is not None:
            due = asyncio.get_running_loop().time() + timeout_s - (time.perf_counter() - http.state.arrived)
        try:
            async with asyncio.timeout_at(due):
                return await read_body(http, self._bounds.max_body_bytes, self._bounds.body_timeout_s, share)
        except TimeoutError:
            assert timeout_s is not None
            error = deadline_exceeded(timeout_s)
            error.headers["Connection"] = "close"  # the rest of the body is not the next request
            raise error from None
