import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from serve_app.api.request_head import RequestMiddleware
from tests.api.server import Server

RESPONSE: list[Message] = [
    {"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]},
    {"type": "http.response.body", "body": b"ok"},
]


async def receive() -> Message:
    raise AssertionError("nothing reads the request here")


async def exchange(
    *headers: tuple[bytes, bytes], add_header: bool = True, scope_type: str = "http"
) -> tuple[Scope, list[Message]]:
    """The scope the application saw, and what was sent."""
    seen: list[Scope] = []
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        for message in RESPONSE:
            await send({**message, "headers": list(message["headers"])} if "headers" in message else message)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": scope_type, "method": "POST", "path": "/", "headers": list(headers)}
    await RequestMiddleware(app, add_header)(scope, receive, send)
    return seen[0], sent


def ids(sent: list[Message]) -> list[bytes]:
    return [value for name, value in sent[0]["headers"] if name == b"x-request-id"]


@pytest.mark.parametrize(
    "given", [b"", b" ", b"a b", b"a\tb", b"a\r\nset-cookie: x", b"caf\xc3\xa9", b"\xff", b"a" * 257]
)
async def test_an_unusable_id_is_replaced(given: bytes) -> None:
    scope, sent = await exchange((b"x-request-id", given))

    made = scope["state"]["request_id"]
    assert len(made) == 32
    assert int(made, 16)
    assert ids(sent) == [made.encode()]


async def test_first_usable_id_counts() -> None:
    _, sent = await exchange(
        (b"x-request-id", b"not usable"), (b"x-request-id", b"b"), (b"x-request-id", b"c")
    )

    assert ids(sent) == [b"b"]


async def test_behind_ray_the_id_is_not_added_to_the_response() -> None:
    scope, sent = await exchange((b"x-request-id", b"a"), add_header=False)

    assert scope["state"]["request_id"] == "a"
    assert sent == RESPONSE


PATHS = ["/health", "/ready", "/metrics", "/v1/models", "/v1/models/tide", "/openapi.json", "/docs"]


@pytest.mark.parametrize("path", PATHS)
async def test_head_answers_as_get_does_without_the_body(server: Server, path: str) -> None:
    get = await server.http.get(path)
    head = await server.http.head(path)

    assert (head.status_code, head.content) == (200, b"")
    assert get.content
    for headers in (get.headers, head.headers):
        headers.pop("x-request-id")
    assert head.headers == get.headers


async def test_head_of_what_takes_a_post_is_a_405(server: Server) -> None:
    reply = await server.http.head("/v1/completions")

    assert (reply.status_code, reply.content, reply.headers["allow"]) == (405, b"", "POST")
    assert server.chat.requests == []


@pytest.mark.parametrize("prefix", ["", "/tide"])
async def test_each_path_is_answered_alike_with_a_slash(prefix: str) -> None:
    app = Server().app
    http = httpx.AsyncClient(
        transport=httpx.ASGITransport(app, root_path=prefix),
        base_url="https://tide",
        headers={"Content-Type": "application/json", "X-Request-ID": "r"},
    )
    async with http:
        for route in app.routes:
            for method in getattr(route, "methods", ()) or ():
                path = prefix + route.path.replace("{model:path}", "tide")
                plain, slashed = [
                    await http.request(method, path + end, content=b'{"model":"tide"}') for end in ("", "/")
                ]
                assert slashed.status_code == plain.status_code != 307, (method, path)
                assert slashed.content == plain.content
    assert {route.path for route in app.routes} >= {"/v1/messages", "/health", "/docs", "/openapi.json"}


async def test_errors_behind_a_slash_have_the_form_of_their_api(server: Server) -> None:
    reply = await server.http.post("/v1/messages//", content=b"{}")

    assert (reply.status_code, reply.json()["type"]) == (400, "error")
    assert "request-id" in reply.headers
