import logging
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from serve_app.api.engine_response import WriteNowMiddleware, write_now
from serve_app.patches.uvicorn import listen_beside


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    offered = write_now(scope) is not None
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
    await send({"type": "http.response.body", "body": b"%d" % offered})


@asynccontextmanager
async def serving(**options: str) -> AsyncIterator[tuple[uvicorn.Server, str]]:
    """A server as Ray starts it, and the URL of its port."""
    app = WriteNowMiddleware(_app)
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, lifespan="off", log_config=None, ws="none", **options
    )  # type: ignore[arg-type]
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield server, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        await server.shutdown()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where servers of this test listen, in a folder that is not there yet."""
    monkeypatch.setattr(uvicorn.Server, "startup", uvicorn.Server.startup)  # given back afterwards
    path = tmp_path / "node" / "i-abc"
    listen_beside(path)
    return path


async def asked(path: Path) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client:
        return await client.get("http://tide/")


async def test_the_application_answers_on_the_socket_as_on_the_port(path: Path) -> None:
    async with serving() as (_, url), httpx.AsyncClient() as client:
        assert (await client.get(url)).text == "1"
        assert (await asked(path)).text == "1"


async def test_nobody_else_may_use_the_socket(path: Path) -> None:
    async with serving():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_the_socket_closes_with_the_port(path: Path) -> None:
    async with serving():
        pass
    with pytest.raises(httpx.ConnectError):
        await asked(path)


async def test_a_replica_that_cannot_have_the_socket_has_its_port(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "ray.serve"):
        async with serving() as (_, url), httpx.AsyncClient() as client:
            assert (await client.get(url)).text == "1"
    assert f"no socket at {path}" in caplog.text
