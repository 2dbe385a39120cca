import pytest
from starlette.types import Message, Receive, Scope, Send

from serve_app.api.middleware import RequestMiddleware
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
