"""The OpenAI endpoints: which engine operation each path is, and nothing more."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from serve_app.api.endpoints import Endpoints
from serve_app.api.engine_client import Operation
from serve_app.api.schemas import body_schema

_PATHS: tuple[tuple[str, Operation, str], ...] = (
    ("/v1/chat/completions", "chat_completions", "Chat completion, streamed or whole"),
    ("/v1/completions", "completions", "Text completion, streamed or whole"),
    ("/v1/embeddings", "embeddings", "Embeddings, where the model can"),
    ("/tokenize", "tokenize", "Text or messages to token ids"),
    ("/detokenize", "detokenize", "Token ids to text"),
)


def openai_router(endpoints: Endpoints) -> APIRouter:
    """Completions, embeddings, tokenization and the model list."""
    router = APIRouter()
    for path, operation, summary in _PATHS:
        router.add_api_route(
            path,
            endpoints.openai(operation),
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
        return {"object": "list", "data": [model.card() for model in endpoints.models.values()]}

    @router.get("/v1/models/{model:path}", summary="One model", tags=["OpenAI"])
    async def get_model(model: str) -> dict[str, Any]:
        return dict(endpoints.find(model).card())

    return router
