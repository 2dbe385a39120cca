"""The OpenAI endpoints: which engine operation each path is, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from serve_app.api.body import check_structure, peek, read_body
from serve_app.api.body_memory import BodyMemory
from serve_app.api.engine_client import EngineRequest, Operation
from serve_app.api.engine_response import EngineResponse
from serve_app.api.errors import ApiError, no_such_model
from serve_app.api.generate import GenerateRequest, GenerateResponse
from serve_app.api.models import ApiModel
from serve_app.api.schemas import body_schema, generate_schema
from serve_app.settings.tree import HttpSettings

_PATHS: tuple[tuple[str, Operation, str], ...] = (
    ("/v1/chat/completions", "chat_completions", "Chat completion, streamed or whole"),
    ("/v1/completions", "completions", "Text completion, streamed or whole"),
    ("/v1/embeddings", "embeddings", "Embeddings, where the model can"),
    ("/tokenize", "tokenize", "Text or messages to token ids"),
    ("/detokenize", "detokenize", "Token ids to text"),
)


def find_model(models: Mapping[str, ApiModel], name: str | None) -> ApiModel:
    """The model called `name`; the only model, if none is named. Raises ApiError 404 or 400."""
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name is None or name not in models:
        raise no_such_model(name, models)
    return models[name]


def openai_router(served: Sequence[ApiModel], bounds: HttpSettings) -> APIRouter:
    """Completions, embeddings, tokenization, the model list and `/generate`."""
    router = APIRouter()
    models = {model.name: model for model in served}
    memory = BodyMemory(bounds.max_body_memory_bytes)

    async def answered(
        http: Request, operation: Operation, read: Callable[[bytes], tuple[ApiModel, bool]]
    ) -> Response:
        """The engine's answer. `read` tells which model a body is for, and whether it asks for a stream."""
        state = http.state
        share = memory.share(getattr(state, "api_key", None))
        try:
            body = await read_body(http, bounds.max_body_bytes, bounds.body_timeout_s, share)
            await check_structure(body)
            model, wants_stream = read(body)
            request = EngineRequest(operation, body, state.request_id, state.arrived, wants_stream)
            try:
                share.belongs_to(model.name)
            except ApiError as error:
                model.traffic.rejected(request, error)
                raise
            return EngineResponse(model.engine, request, model.traffic, share.release)
        except BaseException:
            share.release()
            raise

    def add(path: str, operation: Operation, summary: str) -> None:
        streamable = operation in ("chat_completions", "completions")

        async def endpoint(request: Request) -> Response:
            def read(body: bytes) -> tuple[ApiModel, bool]:
                seen = peek(body)
                return find_model(models, seen.model), streamable and seen.wants_stream

            return await answered(request, operation, read)

        router.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            name=operation,
            operation_id=operation,
            summary=summary,
            tags=["OpenAI" if path.startswith("/v1") else "tokens"],
            response_class=JSONResponse,
            openapi_extra={"requestBody": body_schema(operation)},
        )

    for path, operation, summary in _PATHS:
        add(path, operation, summary)

    @router.get("/v1/models", summary="The models served", tags=["OpenAI"])
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [model.card() for model in served]}

    @router.get("/v1/models/{model:path}", summary="One model", tags=["OpenAI"])
    async def get_model(model: str) -> dict[str, Any]:
        return dict(find_model(models, model).card())

    @router.post(
        "/generate",
        summary="Continue a prompt, token by token",
        tags=["generate"],
        response_model=GenerateResponse,
        responses={200: {"content": {"text/event-stream": {}}}, 422: {"description": "Invalid request"}},
        openapi_extra={"requestBody": generate_schema()},
    )
    async def generate(request: Request) -> Response:
        def read(data: bytes) -> tuple[ApiModel, bool]:
            try:
                body = GenerateRequest.model_validate_json(data)
            except ValidationError as error:
                details = [
                    {**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)
                ]
                raise RequestValidationError(details) from None
            model = served[0] if body.model is None else find_model(models, body.model)
            return model, body.stream

        return await answered(request, "generate", read)

    return router
