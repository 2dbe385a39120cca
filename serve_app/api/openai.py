"""The OpenAI endpoints: which engine operation each path is, and nothing more."""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from serve_app.api.body import check_structure, peek, read_body
from serve_app.api.body_memory import BodyMemory
from serve_app.api.engine_client import EngineRequest, Operation
from serve_app.api.engine_response import EngineResponse
from serve_app.api.errors import ApiError, no_such_model
from serve_app.api.models import ApiModel
from serve_app.api.schemas import body_schema
from serve_app.settings.tree import HttpSettings

_PATHS: tuple[tuple[str, Operation, str], ...] = (
    ("/v1/chat/completions", "chat_completions", "Chat completion, streamed or whole"),
    ("/v1/completions", "completions", "Text completion, streamed or whole"),
    ("/v1/embeddings", "embeddings", "Embeddings, where the model can"),
    ("/tokenize", "tokenize", "Text or messages to token ids"),
    ("/detokenize", "detokenize", "Token ids to text"),
)


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

    async def answer(
        self, http: Request, operation: Operation, read: Callable[[bytes], tuple[ApiModel, bool]]
    ) -> Response:
        """The engine's answer. `read` tells which model a body is for, and whether it asks for a stream."""
        state = http.state
        share = self._memory.share(getattr(state, "api_key", None))
        try:
            body = await read_body(http, self._bounds.max_body_bytes, self._bounds.body_timeout_s, share)
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


def openai_router(endpoints: Endpoints) -> APIRouter:
    """Completions, embeddings, tokenization and the model list."""
    router = APIRouter()

    def add(path: str, operation: Operation, summary: str) -> None:
        streamable = operation in ("chat_completions", "completions")

        def read(body: bytes) -> tuple[ApiModel, bool]:
            seen = peek(body)
            return endpoints.find(seen.model), streamable and seen.wants_stream

        async def endpoint(request: Request) -> Response:
            return await endpoints.answer(request, operation, read)

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
        return {"object": "list", "data": [model.card() for model in endpoints.models.values()]}

    @router.get("/v1/models/{model:path}", summary="One model", tags=["OpenAI"])
    async def get_model(model: str) -> dict[str, Any]:
        return dict(endpoints.find(model).card())

    return router
