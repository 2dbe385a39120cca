"""The endpoints of engine operations: read the body within bounds, find the model, send the answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from serve_app.api.body import KEPT, BodyMemory, BodyShare, check_structure, peek, read_body
from serve_app.api.browsers import check_content_type
from serve_app.api.engine_client import EngineClient, EngineRequest, Operation, RequestState, Traffic
from serve_app.api.engine_response import EngineResponse
from serve_app.api.errors import ApiError, deadline_exceeded
from serve_app.api.generate import GenerateRequest, GenerateResponse
from serve_app.api.prompt_prefix import PromptFields, prompt_prefix
from serve_app.api.ray_headers import request_timeout_s
from serve_app.api.request_trace import UNTRACED, Trace
from serve_app.api.schemas import body_schema, generate_schema
from serve_app.api.trace_context import TraceContext
from serve_app.settings.caller import ANYONE
from serve_app.settings.tree import HttpSettings

_PATHS: tuple[tuple[str, Operation, str], ...] = (
    ("/v1/chat/completions", "chat_completions", "Chat completion, streamed or whole"),
    ("/v1/completions", "completions", "Text completion, streamed or whole"),
    ("/v1/embeddings", "embeddings", "Embeddings, where the model can"),
    ("/tokenize", "tokenize", "Text or messages to token ids"),
    ("/detokenize", "detokenize", "Token ids to text"),
)


@dataclass(frozen=True, slots=True)
class ApiModel:
    """One model: its public name, and when this process began to serve it (Unix time)."""

    name: str
    created: int
    engine: EngineClient
    """Runs its requests."""
    max_model_len: int | None = None
    traffic: Traffic = field(default_factory=Traffic)
    """Gets the events of its requests."""

    def card(self) -> dict[str, str | int | None]:
        """Return the model's entry in `/v1/models`."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "tideserve",
            "max_model_len": self.max_model_len,
        }


@dataclass(frozen=True, slots=True)
class Seen:
    """The fields of a body that the ingress needs."""

    model: ApiModel
    wants_stream: bool
    fields: PromptFields | None
    """The fields of the prompt; None for an operation without generation."""


class Endpoints:
    """Answers requests for the models of one application."""

    def __init__(self, served: Sequence[ApiModel], bounds: HttpSettings) -> None:
        self.models = {model.name: model for model in served}
        self._bounds = bounds
        self._memory = BodyMemory(bounds.max_body_memory_bytes)

    def find(self, name: str | None) -> ApiModel:
        """Return the model `name`; without a name, the only model. Raises ApiError 404 or 400."""
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name in self.models:
            return self.models[name]
        served = f"this server has {', '.join(map(repr, self.models))}."
        if name is None:
            raise ApiError(400, f"model: required; {served}", param="model", code="missing_field")
        message = f"model = {name[:200]!r}: does not exist; {served}"
        raise ApiError(404, message, param="model", code="model_not_found")

    def router(self) -> APIRouter:
        """Return the routes of completions, embeddings, tokenization, the model list and `/generate`."""
        router = APIRouter()
        for path, operation, summary in _PATHS:
            router.add_api_route(
                path,
                self._endpoint(operation),
                methods=["POST"],
                name=operation,
                operation_id=operation,
                summary=summary,
                tags=["OpenAI" if path.startswith("/v1") else "tokens"],
                response_class=JSONResponse,
                openapi_extra={"requestBody": body_schema(operation)},
            )

        @router.get("/v1/models", summary="The models served", tags=["OpenAI"])
        async def list_models() -> dict[str, Any]:
            return {"object": "list", "data": [model.card() for model in self.models.values()]}

        @router.get("/v1/models/{model:path}", summary="One model", tags=["OpenAI"])
        async def get_model(model: str) -> dict[str, Any]:
            return dict(self.find(model).card())

        router.add_api_route(
            "/generate",
            self._endpoint("generate"),
            methods=["POST"],
            name="generate",
            summary="Continue a prompt, token by token",
            tags=["generate"],
            response_model=GenerateResponse,
            responses={200: {"content": {"text/event-stream": {}}}, 422: {"description": "Invalid request"}},
            openapi_extra={"requestBody": generate_schema()},
        )
        return router

    def _endpoint(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await self.answer(request, operation)

        return endpoint

    def _see(self, operation: Operation, body: bytes) -> Seen:
        """Return the fields that the ingress needs. Only the engine replica validates an OpenAI body."""
        if operation == "generate":
            return self._see_generate(body)
        fields = peek(body)
        model = self.find(fields.model)
        if operation in ("chat_completions", "completions"):
            return Seen(model, fields.stream is True, fields)
        return Seen(model, False, None)

    def _see_generate(self, data: bytes) -> Seen:
        try:
            body = GenerateRequest.model_validate_json(data)
        except ValidationError as error:
            details = [{**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)]
            raise RequestValidationError(details) from None
        model = self.find(next(iter(self.models)) if body.model is None else body.model)
        return Seen(model, body.stream, peek(data))

    async def answer(self, http: Request, operation: Operation) -> Response:
        """Return the engine's answer to a request, which has been read and admitted to memory."""
        check_content_type(http.scope["headers"])
        timeout_s = request_timeout_s(http.scope)
        state = http.state
        key = getattr(state, "api_key", None)
        share = BodyShare(self._memory, key)
        try:
            body = await self._read(http, share, timeout_s)
            await check_structure(body)
            seen = self._see(operation, body)
            model = seen.model
            salt = getattr(state, "cache_salt", "")
            trace: Trace = getattr(state, "trace", UNTRACED)
            request = EngineRequest(
                operation,
                body,
                state.request_id,
                state.arrived,
                seen.wants_stream,
                timeout_s,
                trace.for_engine(TraceContext.of(http.scope["headers"])),
                salt,
                None if seen.fields is None else prompt_prefix(seen.fields, salt),
                BodyShare(self._memory, KEPT) if seen.wants_stream else None,
                state=RequestState(trace=trace),
                caller=getattr(state, "caller", ANYONE),
            )
            trace.note_request(request)
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
        """Read the body, within the settings' bounds and the client's deadline."""
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
