"""The endpoints of engine operations: read the body within bounds, find the model, send the answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from serve_app.api.body import (
    MAX_CONTAINERS,
    MESSAGES_CONTAINERS,
    Peek,
    body_too_large,
    check_structure,
    peek,
    read_body,
    repeated_bytes,
)
from serve_app.api.body_memory import KEPT, BodyMemory, BodyShare
from serve_app.api.browsers import check_content_type
from serve_app.api.budgets import Budgets
from serve_app.api.dialect import EVENT_STREAM
from serve_app.api.engine_client import (
    GENERATING,
    SPEECH_OPERATIONS,
    EngineClient,
    EngineRequest,
    Operation,
    Traffic,
)
from serve_app.api.engine_response import EngineResponse, Use
from serve_app.api.errors import ApiError, deadline_exceeded
from serve_app.api.generate_body import GenerateRequest, GenerateResponse
from serve_app.api.prompt_prefix import prompt_prefix
from serve_app.api.quotas import Quotas
from serve_app.api.request_head import LANE_HEADER, RequestHead, head_of, key_of
from serve_app.api.schemas import body_schema, generate_schema
from serve_app.api.upload import fields_of, read_speech
from serve_app.settings.keys_file import ApiKey
from serve_app.settings.knobs import Knobs
from serve_app.settings.model_names import Adapter, is_pattern, model_of
from serve_app.settings.settings_error import shown
from serve_app.settings.tree import HttpSettings

_PATHS: tuple[tuple[str, Operation, str], ...] = (
    ("/v1/chat/completions", "chat_completions", "Chat completion, streamed or whole"),
    ("/v1/responses", "responses", "Response, streamed or whole; nothing is stored"),
    ("/v1/completions", "completions", "Text completion, streamed or whole"),
    ("/v1/messages", "messages", "Message in Anthropic's API, streamed or whole"),
    ("/v1/messages/count_tokens", "count_tokens", "The number of tokens of a message's prompt"),
    ("/v1/embeddings", "embeddings", "Embeddings, where the model can"),
    ("/v1/score", "score", "Scores of pairs of texts, where the model can"),
    ("/score", "score", "The same as /v1/score"),
    ("/v1/rerank", "rerank", "Documents in the order of their relevance to a query, where the model can"),
    ("/v2/rerank", "rerank", "The same as /v1/rerank"),
    ("/rerank", "rerank", "The same as /v1/rerank"),
    ("/classify", "classify", "Classes of texts, where the model can"),
    ("/pooling", "pooling", "The output of a pooling model as it is"),
    ("/v1/audio/transcriptions", "transcriptions", "Speech to text, streamed or whole, where the model can"),
    ("/v1/audio/translations", "translations", "Speech to text in another language, where the model can"),
    ("/tokenize", "tokenize", "Text or messages to token ids"),
    ("/detokenize", "detokenize", "Token ids to text"),
)
_MESSAGES = ("messages", "count_tokens")
_FIRST_PATHS = {operation: path for path, operation, _ in reversed(_PATHS)}
_OPERATIONS = {path: operation for path, operation, _ in _PATHS}
_STREAMED = (*GENERATING, *SPEECH_OPERATIONS)
_CONTEXT = 32_768
"""The most tokens of an answer without a bound, of a model without `max_model_len`."""
_NAMES_SHOWN = 20
"""Names of models in an error."""


@dataclass(frozen=True, slots=True)
class ApiModel:
    """One model: its public name, and when this process began to serve it (Unix time)."""

    name: str
    created: int
    engine: EngineClient[EngineRequest]
    """Runs its requests."""
    max_model_len: int | None = None
    traffic: Traffic = field(default_factory=Traffic)
    """Gets the events of its requests."""
    knobs: Callable[[], Knobs] = Knobs
    """Returns its present knobs, which have its aliases and adapters."""
    adapter: Adapter | None = None
    """The adapter that a request chose; None for the model itself."""
    alias: str = ""
    """The name by which a request chose the model; "" for its own name, or its adapter's."""

    @property
    def id(self) -> str:
        """The name by which it was asked for."""
        return self.alias or (self.name if self.adapter is None else self.adapter.name)

    def may_be_used_by(self, key: ApiKey) -> bool:
        """Return whether `key` allows the model's own name, or its adapter's or alias's.

        An alias with wildcards does not count: the client chooses the name that matches.
        """
        wild = self.alias and (is_pattern(self.alias) or self.alias not in self.knobs().aliases)
        return key.allows(self.name) or (not wild and key.allows(self.id))

    def card(self) -> dict[str, str | int | None]:
        return {
            "id": self.id,
            "object": "model",
            "created": self.created,
            "owned_by": "tideserve",
            "max_model_len": self.max_model_len,
            **({} if self.adapter is None else {"parent": self.name}),
            **({"root": self.name} if self.alias else {}),
        }


class Endpoints:
    """Answers requests for the models of one application."""

    def __init__(
        self,
        served: Sequence[ApiModel],
        bounds: HttpSettings,
        quotas: Quotas | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        self.models = {model.name: model for model in served}
        self._quotas = quotas or Quotas()
        self._budgets = budgets
        self._bounds = bounds
        self.memory = BodyMemory(bounds.max_body_memory_bytes)

    def find(self, name: str | None, key: ApiKey | None = None) -> ApiModel:
        """Return the model of this name or alias, or of the adapter `name`; without a name, the only model.

        Raises:
            ApiError: 400 or 404 without such a model, 403 if `key` may not use the model.
        """
        if name is None and len(self.models) == 1:
            name = next(iter(self.models))
        model = None if name is None else self._named(name)
        if model is not None:
            if key is None or model.may_be_used_by(key):
                return model
            message = f"model = {shown(name)}: the API key {key.name!r} may not use this model."
            raise ApiError(403, message, param="model", code="model_not_allowed")
        names = self._names(key)
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        served = f"this server has {', '.join(map(repr, names[:_NAMES_SHOWN]))}{more}."
        if name is None:
            raise ApiError(400, f"model: required; {served}", param="model", code="missing_field")
        message = f"model = {name[:200]!r}: does not exist; {served}"
        raise ApiError(404, message, param="model", code="model_not_found")

    def _named(self, name: str) -> ApiModel | None:
        if name in self.models:
            return self.models[name]
        for model in self.models.values():
            if (source := model.knobs().adapters.get(name)) is not None:
                return replace(model, adapter=Adapter(name, source))
        found = model_of(name, {model.name: model.knobs().aliases for model in self.models.values()})
        return None if found is None else replace(self.models[found], alias=name)

    def _names(self, key: ApiKey | None) -> list[str]:
        """Return the names of the models, of their adapters, and their aliases without wildcards."""
        found: list[str] = []
        for model in self.models.values():
            knobs = model.knobs()
            names = [model.name, *knobs.adapters, *(name for name in knobs.aliases if not is_pattern(name))]
            found += names if key is None or key.allows(model.name) else filter(key.allows, names)
        return found

    def router(self) -> APIRouter:
        """Return the routes of completions, embeddings, tokenization, the model list and `/generate`."""
        router = APIRouter()
        for path, operation, summary in _PATHS:
            router.add_api_route(
                path,
                self._endpoint(operation),
                methods=["POST"],
                name=operation,
                operation_id=operation if path == _FIRST_PATHS[operation] else None,
                summary=summary,
                tags=["tokens" if operation.endswith("tokenize") else "OpenAI"],
                response_class=JSONResponse,
                responses={200: {"content": {EVENT_STREAM: {}}}} if operation in _STREAMED else None,
                openapi_extra={"requestBody": body_schema(operation)},
            )

        @router.get("/v1/models", summary="The models served", tags=["OpenAI"])
        async def list_models(request: Request) -> dict[str, Any]:
            key = key_of(request)
            found = [model for model in map(self._named, self._names(key)) if model is not None]
            allowed = [model.card() for model in found if key is None or model.may_be_used_by(key)]
            return {"object": "list", "data": allowed}

        @router.get("/v1/models/{model:path}", summary="One model", tags=["OpenAI"])
        async def get_model(request: Request, model: str) -> dict[str, Any]:
            return dict(self.find(model, key_of(request)).card())

        router.add_api_route(
            "/generate",
            self._endpoint("generate"),
            methods=["POST"],
            name="generate",
            summary="Continue a prompt, token by token",
            tags=["generate"],
            response_model=GenerateResponse,
            responses={200: {"content": {EVENT_STREAM: {}}}},
            openapi_extra={"requestBody": generate_schema()},
        )
        return router

    def _endpoint(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await self.answer(request, operation)

        return endpoint

    def _generate_fields(self, body: bytes) -> Peek:
        """Return the fields of a body of `/generate`, the only one that the ingress validates."""
        try:
            given = GenerateRequest.model_validate_json(body)
        except ValidationError as error:
            details = [{**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)]
            raise RequestValidationError(details) from None
        fields = peek(body)
        fields.model = next(iter(self.models)) if given.model is None else given.model
        fields.max_tokens = msgspec.Raw(b"%d" % given.max_tokens)
        return fields

    async def answer(self, http: Request, operation: Operation) -> Response:
        """Return the engine's answer to a request, which has been read and admitted to memory."""
        if operation not in SPEECH_OPERATIONS:  # a form shows a page only by its origin
            check_content_type(http.scope["headers"])
        sender = head_of(http, self._bounds.conversation_header)
        share = BodyShare(self.memory, sender.group)
        try:
            body = await self._read(http, operation, share, sender.timeout_s)
        except BaseException:
            share.release()
            raise
        return await self.respond(operation, body, sender, share)

    def share(self, sender: RequestHead, body: bytes) -> BodyShare:
        """Return the memory of a body that did not come over HTTP. Raises ApiError 413 or 429."""
        if len(body) > self._bounds.max_body_bytes:
            raise body_too_large(self._bounds.max_body_bytes)
        share = BodyShare(self.memory, sender.group)
        share.grow(len(body))
        return share

    async def respond(
        self, operation: Operation, body: bytes, sender: RequestHead, share: BodyShare, *, whole: bool = False
    ) -> EngineResponse:
        """Return the response to a body that has been read. The response, or an error, releases `share`.

        Args:
            whole: Whether a stream is refused.

        Raises:
            ApiError: the body is invalid, its model is unknown, or a limit of the sender's key is reached.
        """
        uses: list[Use] = []
        try:
            document = fields_of(body) if operation in SPEECH_OPERATIONS else body
            await check_structure(document, MESSAGES_CONTAINERS if operation in _MESSAGES else MAX_CONTAINERS)
            fields = self._generate_fields(body) if operation == "generate" else peek(document)
            model = self.find(fields.model, sender.key)
            generates = operation in _STREAMED
            wants_stream = generates and fields.wants_stream
            if whole and wants_stream:
                message = "stream = true: a batch has no streams"
                raise ApiError(400, message, param="stream", code="invalid_value")
            adapter, salt = model.adapter, sender.cache_salt
            prefix_salt = salt if adapter is None else f"{salt}\0{adapter.name}\0{adapter.source}"
            trace = sender.trace
            request = EngineRequest(
                operation,
                body,
                sender.request_id,
                sender.arrived,
                wants_stream,
                sender.timeout_s,
                trace.for_engine(sender.context),
                salt,
                prompt_prefix(fields, prefix_salt) if operation in GENERATING else None,
                BodyShare(self.memory, KEPT) if wants_stream else None,
                model.name,
                model.alias,
                sender.caller,
                adapter,
                repeated_bytes=repeated_bytes(body) if operation in ("score", "rerank") else 0,
                trace=trace,
                conversation=sender.conversation or sender.caller.key,
            )
            trace.note_request(request, document)
            try:
                answer_bound = fields.answer_bound(operation) if generates else 0
                # Only a body with one prompt has a prefix.
                context = (request.prefix and model.max_model_len) or inf
                if sender.key is not None and sender.key.is_limited:
                    quota_use = self._quotas.reserve(sender.key, request, answer_bound, context)
                    uses.append(quota_use)
                    if quota_use.over_quota:
                        request.caller = sender.caller.lowered_to("background")
                        quota_use.headers[LANE_HEADER] = "background"
                        trace.note_request(request, document)
                if sender.caller.budgets and self._budgets is not None:
                    most = fields.answer_bound(operation, model.max_model_len or _CONTEXT) if generates else 0
                    budgets = sender.caller.budgets
                    budget_use = await self._budgets.reserve(budgets, request, most or 0, context)
                    uses += [] if budget_use is None else [budget_use]
                lowered = request.caller is not sender.caller
                background = request.caller.lane == "background"
                share.belongs_to(model.name, background=background, lowered=lowered)
            except ApiError as error:
                if error.status == 429:
                    model.traffic.rejected(request, error)
                raise
            return EngineResponse(model.engine, request, model.traffic, share.release, uses)
        except BaseException:
            share.release()
            for use in uses:
                use.settle(request)
            raise

    async def _read(
        self, http: Request, operation: Operation, share: BodyShare, timeout_s: float | None
    ) -> bytes:
        """Read the body, within the settings' bounds and the client's deadline."""
        due = None
        if timeout_s is not None:
            due = asyncio.get_running_loop().time() + timeout_s - (time.perf_counter() - http.state.arrived)
        try:
            async with asyncio.timeout_at(due):
                read = read_speech if operation in SPEECH_OPERATIONS else read_body
                return await read(http, self._bounds.max_body_bytes, self._bounds.body_timeout_s, share)
        except TimeoutError:
            assert timeout_s is not None
            error = deadline_exceeded(timeout_s)
            error.headers["Connection"] = "close"  # the rest of the body is not the next request
            raise error from None


def operation_at(path: str) -> Operation:
    """Return the operation of the endpoint at `path`. Raises KeyError without such an endpoint."""
    return _OPERATIONS[path]
