"""What a real browser lets a page do with the API: uvicorn and Chromium are real, engines are stubs."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp

from tests.api.server import Server
from tests.http_server import port_of, uvicorn_with
from tests.loadtests.drawing.browser import needs_browser, visited
from tests.stub_engine import StubEngine, frames

pytestmark = needs_browser

EVENTS = [b'data: {"n":%d}\n\n' % number for number in range(3)]
BODY = '{"model": "tide", "stream": true}'
# The browser waits for the picture, which comes once the script has told what it has seen.
PAGE = """
<body><img src="/picture"><script>
const api = "http://127.0.0.1:%d", seen = {}, body = '%s';
async function tell(name, asked) {
  try {
    const reply = await asked, read = reply.body && reply.body.getReader();
    let text = "", piece;
    while (read && !(piece = await read.read()).done) text += new TextDecoder().decode(piece.value);
    seen[name] = {status: reply.status, text, id: reply.headers.get("X-Request-ID")};
  } catch (error) { seen[name] = null; }
}
(async () => {
  const json = {"Content-Type": "application/json", Authorization: "Bearer none"};
  for (const path of ["/v1/completions", "/generate"]) {
    await tell("text" + path, fetch(api + path, {method: "POST", body}));
    await tell("hidden" + path, fetch(api + path, {method: "POST", mode: "no-cors", body}));
    await tell("blob" + path, fetch(api + path, {method: "POST", mode: "no-cors", body: new Blob([body])}));
    await tell("form" + path, fetch(api + path, {method: "POST", body: new URLSearchParams({body})}));
  }
  await tell("json", fetch(api + "/v1/completions", {method: "POST", headers: json, body}));
  await tell("models", fetch(api + "/v1/models"));
  await tell("wrong", fetch(api + "/v1/completions", {method: "POST", headers: json, body: "{}"}));
  await fetch("/seen", {method: "POST", body: JSON.stringify(seen)});
})();
</script></body>
"""


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[int]:
    """The port of uvicorn with `app`."""
    async with uvicorn_with(app) as server:
        yield port_of(server)


async def seen_by_a_page(folder: Path, allowed: bool) -> tuple[dict[str, Any], Server]:
    """What a page of another origin got, and the server it asked."""
    port = 0
    told: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def page(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/seen":
            told.set_result(await Request(scope, receive).json())
        elif scope["path"] == "/picture":
            await told
        await HTMLResponse(PAGE % (port, BODY))(scope, receive, send)

    async with listening(page) as own:
        origins = [f"http://pages.example:{own}"] if allowed else []
        engine = StubEngine(frames(*EVENTS))
        server = Server(listens_on="127.0.0.1", chat=engine, cors_origins=origins)
        async with server.http, listening(server.app) as port:
            visit = asyncio.to_thread(visited, f"http://pages.example:{own}/", folder)
            seen, _ = await asyncio.gather(told, visit)
    return seen, server


async def test_a_page_that_is_not_allowed_reaches_no_engine(tmp_path: Path) -> None:
    seen, server = await seen_by_a_page(tmp_path, allowed=False)

    assert server.chat.requests == []
    readable = {name: reply for name, reply in seen.items() if reply is not None and reply["status"]}
    assert readable == {}


async def test_an_allowed_page_streams_and_reads_errors(tmp_path: Path) -> None:
    seen, server = await seen_by_a_page(tmp_path, allowed=True)

    assert seen["json"]["status"] == 200
    assert seen["json"]["text"].encode() == b"".join(EVENTS)
    assert seen["json"]["id"]
    assert json.loads(seen["models"]["text"])["data"][0]["id"] == "tide"
    assert json.loads(seen["wrong"]["text"])["error"]["code"] == "missing_field"
    assert [seen[f"{kind}/generate"]["status"] for kind in ("text", "form")] == [415, 415]
    assert [request.body.decode() for request in server.chat.requests] == [BODY]


async def test_dns_rebinding_is_refused(tmp_path: Path) -> None:
    server = Server(listens_on="127.0.0.1")
    async with server.http, listening(server.app) as port:
        opened = await asyncio.to_thread(visited, f"http://evil.example:{port}/v1/models", tmp_path)

    assert "host_not_allowed" in opened.dom
    assert "tide" not in opened.dom.replace("evil.example", "")
