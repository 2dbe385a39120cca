"""The OpenAI endpoints: which engine operation each path is, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from serve_app.api.body import peek, read_body
from serve_app.api.body_memory import BodyMemory
from serve_app.api.body_values import check_structure
from serve_app.api.engine_client import EngineRequest, Operation
from serve_app.api.engine_response import EngineResponse
from serve_app.api.errors import ApiError
from serve_app.api.generate import GenerateRequest, GenerateResponse
from serve_app.api.models import ModelDirectory, ServedModel
from serve_app.api.schemas import body_schema, generate_schema
from serve_app.settings.tree import HttpSettings

_PATHS: tuple[tuple[str, Operation, str], ...] = (
    ("/v1/chat/completions", "chat_completions", "Chat completion, streamed or whole"),
    ("/v1/completions", "completions", "Text completion, streamed or whole"),
    ("/v1/embeddings", "embeddings", "Embeddings, where the model can"),
    ("/tokenize", "tokenize", "Text or messages to token ids"),
    ("/detokenize", "detokenize", "Token ids to text"),
)
_STREAMABLE: tuple[Operation, ...] = ("chat_completions", "completions")


def openai_router(models: ModelDirectory, bounds: HttpSettings) -> APIRouter:
    """Completions, embeddings, tokenization, the model list and `/generate`."""
    router = APIRouter()
    memory = BodyMemory(bounds.max_body_memory_bytes)

    async def answered(
        http: Request, operation: Operation, read: Callable[[bytes], tuple[ServedModel, bool]]
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
        streamable = operation in _STREAMABLE

        async def endpoint(request: Request) -> Response:
            def read(body: bytes) -> tuple[ServedModel, bool]:
                seen = peek(body)
                return models.find(seen.model), streamable and seen.wants_stream

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
        return {"object": "list", "data": [model.card() for model in models.all()]}

    @router.get("/v1/models/{model:path}", summary="One model", tags=["OpenAI"])
    async def get_model(model: str) -> dict[str, Any]:
        return dict(models.find(model).card())

    @router.post(
        "/generate",
        summary="Continue a prompt, token by token",
        tags=["generate"],
        response_model=GenerateResponse,
        responses={200: {"content": {"text/event-stream": {}}}, 422: {"description": "Invalid request"}},
        openapi_extra={"requestBody": generate_schema()},
    )
    async def generate(request: Request) -> Response:
        def read(data: bytes) -> tuple[ServedModel, bool]:
            try:
                body = GenerateRequest.model_validate_json(data)
            except ValidationError as error:
                details = [
                    {**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)
                ]
                raise RequestValidationError(details) from None
            return models.find(body.model) if body.model is not None else models.first(), body.stream

        return await answered(request, "generate", read)

    return router
