"""The page of the server. Its files are static, need no API key, and show nothing by themselves."""

import gzip
from functools import cache

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from serve_app import __version__
from serve_app.api.request_head import takes_gzip
from serve_app.ui import assets

PAGE_PATHS = frozenset(("/", "/ui", "/ui/", "/ui/page.css", "/ui/page.js"))
_LINKS = ("/ui", "/docs", "/openapi.json", "/v1/models", "/ready", "/metrics", "/autoscaling/events")
_HEADERS = {
    "Cache-Control": "no-cache",
    # Answers and names of models are text. If one became markup, no script in it would run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept, Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
}
_pack = cache(gzip.compress)


def page_router() -> APIRouter:
    """Return the routes of the page and of its files. `/` answers with links where no browser asks."""
    router = APIRouter(include_in_schema=False)

    @router.get("/ui")
    async def page() -> Response:
        return Response(assets.template(), headers=_HEADERS, media_type="text/html")

    @router.get("/")
    async def root(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return await page()
        prefix = request.scope.get("root_path", "")
        links = {link.strip("/"): prefix + link for link in _LINKS}
        return JSONResponse({"server": "Tideserve", "version": __version__, "links": links}, headers=_HEADERS)

    @router.get("/ui/page.css")
    async def style(request: Request) -> Response:
        return _file(request, assets.style(), "text/css")

    @router.get("/ui/page.js")
    async def script(request: Request) -> Response:
        return _file(request, assets.script(), "text/javascript")

    return router


def _file(request: Request, content: bytes, media_type: str) -> Response:
    if not takes_gzip(request):
        return Response(content, headers=_HEADERS, media_type=media_type)
    return Response(_pack(content), headers=_HEADERS | {"Content-Encoding": "gzip"}, media_type=media_type)
