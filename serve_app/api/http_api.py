"""The FastAPI application with all routes and error shapes. It does not depend on Ray or vLLM."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from serve_app import __version__
from serve_app.api.api_keys import OPEN_PATHS, ApiKeyFile, ApiKeyMiddleware
from serve_app.api.autoscaling import (
    AutoscalingView,
    SetKnobs,
    SetShare,
    autoscaling_router,
    canary_router,
    live_router,
)
from serve_app.api.batch_access import BatchAccess
from serve_app.api.batches import batches_router
from serve_app.api.body_memory import AnswerMemoryMiddleware, BodyMemory
from serve_app.api.browsers import BrowserMiddleware, is_loopback
from serve_app.api.budgets import Budgets
from serve_app.api.dialect import JSON, error_response, route_path
from serve_app.api.endpoints import ApiModel, Endpoints
from serve_app.api.errors import ApiError, internal_error
from serve_app.api.files import files_router
from serve_app.api.fleet_events import FleetEvents
from serve_app.api.health import Observer, health_router
from serve_app.api.page import page_router
from serve_app.api.quotas import Quotas
from serve_app.api.request_head import RequestMiddleware, RequestTraces, TraceMiddleware
from serve_app.api.schemas import component_schemas, describe_errors
from serve_app.api.usage import UsageView, usage_router
from serve_app.settings.tree import HttpSettings

_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


def create_app(
    models: Sequence[ApiModel],
    observer: Observer,
    http: HttpSettings,
    *,
    api_keys: ApiKeyFile | None = None,
    quotas: Quotas | None = None,
    budgets: Budgets | None = None,
    autoscaling: AutoscalingView | None = None,
    behind_ray: bool = False,
    listens_on: str | None = None,
    traces: RequestTraces | None = None,
    usage: UsageView | None = None,
    batches: BatchAccess | None = None,
    page: tuple[FleetEvents, SetKnobs] | None = None,
    set_share: SetShare | None = None,
) -> FastAPI:
    """Return the HTTP API over `models`. A feature whose argument is None is not offered.

    Args:
        quotas: The limits of the keys; by default those of a server with one ingress replica.
        behind_ray: Whether Ray Serve is in front, which itself adds `X-Request-ID` to responses.
        listens_on: The address that the server listens on; None if it is not known.
    """
    app = FastAPI(
        title="Tideserve",
        version=__version__,
        description="OpenAI-compatible LLM serving on Ray Serve and vLLM.",
        redirect_slashes=False,
    )
    app.state.endpoints = Endpoints(models, http, quotas, budgets)
    app.include_router(app.state.endpoints.router())
    memory = app.state.endpoints.memory
    app.include_router(health_router(observer, has_keys=api_keys is not None))
    if autoscaling is not None:
        app.include_router(autoscaling_router(autoscaling))
    if page is not None:
        app.include_router(page_router())
        app.include_router(live_router(*page, memory, api_keys is not None, is_loopback(listens_on)))
    if set_share is not None:
        loopback = is_loopback(listens_on)
        app.include_router(canary_router(set_share, memory, api_keys is not None, loopback))
    if usage is not None:
        app.include_router(usage_router(usage, has_keys=api_keys is not None))
    if batches is not None:
        app.include_router(files_router(batches, http, memory))
        app.include_router(batches_router(batches, http, memory))
    app.state.answers = BodyMemory(http.max_body_memory_bytes)
    app.add_middleware(AnswerMemoryMiddleware, memory=app.state.answers)
    if api_keys is not None:
        app.add_middleware(ApiKeyMiddleware, keys=api_keys, share_prefix_cache=http.share_prefix_cache)
    app.add_middleware(BrowserMiddleware, http=http, listens_on=listens_on, keyless=api_keys is None)
    app.add_middleware(TraceMiddleware, traces=traces or RequestTraces())
    app.add_middleware(RequestMiddleware, add_header=not behind_ray)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unforeseen)
    app.add_exception_handler(RequestValidationError, _generate_error)
    app.openapi = lambda: _openapi(app, has_keys=api_keys is not None)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI, *, has_keys: bool) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update(component_schemas())
        describe_errors(document, OPEN_PATHS, has_keys=has_keys)
        app.openapi_schema = document
    return app.openapi_schema


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where, detail = f"{request.method} {request.url.path}", error.detail
    if error.status_code == HTTPStatus.NOT_FOUND:
        prefix = request.scope.get("root_path", "")
        if moved := {prefix: "/", f"{prefix}/ui/": "/ui"}.get(request.url.path):
            return RedirectResponse(prefix + moved)  # where the page's links work
        posts = [route for route in request.app.routes if "POST" in (getattr(route, "methods", None) or ())]
        detail = f"no such path; this server takes POST at {', '.join(route.path for route in posts)}"
    failure = ApiError(
        error.status_code,
        f"{where}: {detail}",
        code=_CODES.get(error.status_code),
        headers=error.headers,
    )
    return error_response(failure, request.scope)


async def _unforeseen(request: Request, error: Exception) -> Response:
    """Return an internal error. Starlette logs the cause and raises it again."""
    reply = error_response(internal_error(), request.scope)
    # Starlette sends this outside of all middleware. Pages can read it only with the CORS headers.
    reply.raw_headers += getattr(request.state, "cors", [])
    return reply


async def _generate_error(request: Request, error: Exception) -> Response:
    """Return FastAPI's `detail`, beside the error in OpenAI's shape; for OpenAI's API only the error."""
    assert isinstance(error, RequestValidationError)
    details = jsonable_encoder(error.errors(), exclude={"input", "ctx", "url"})
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"] if part not in ("body", "query")) or None
    if route_path(request.scope).startswith("/v1/"):
        failure = ApiError(400, f"{param}: {first['msg']}.", param=param, code="invalid_value")
        return error_response(failure, request.scope)
    document = msgspec.json.decode(ApiError(422, first["msg"], param=param, code="invalid_value").body())
    return Response(msgspec.json.encode({"detail": details, **document}), 422, media_type=JSON)
