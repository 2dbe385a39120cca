"""`/generate`: a prompt to continue, token by token."""

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError

from serve_app.api.body import peek
from serve_app.api.endpoints import Endpoints, Seen
from serve_app.api.generate import GenerateRequest, GenerateResponse
from serve_app.api.schemas import generate_schema


def generate_router(endpoints: Endpoints) -> APIRouter:
    """`/generate`."""
    router = APIRouter()
    first = next(iter(endpoints.models))

    def read(data: bytes) -> Seen:
        try:
            body = GenerateRequest.model_validate_json(data)
        except ValidationError as error:
            details = [{**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)]
            raise RequestValidationError(details) from None
        model = endpoints.find(first if body.model is None else body.model)
        return Seen(model, body.stream, peek(data))

    @router.post(
        "/generate",
        summary="Continue a prompt, token by token",
        tags=["generate"],
        response_model=GenerateResponse,
        responses={200: {"content": {"text/event-stream": {}}}, 422: {"description": "Invalid request"}},
        openapi_extra={"requestBody": generate_schema()},
    )
    async def generate(request: Request) -> Response:
        return await endpoints.answer(request, "generate", read)

    return router
