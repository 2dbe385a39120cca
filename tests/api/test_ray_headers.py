import pytest
from ray.serve._private.http_util import RequestIdMiddleware, validate_http_proxy_callback_return
from ray.serve._private.utils import call_function_from_import_path
from starlette.types import Message, Receive, Scope, Send

from serve_app import env
from serve_app.api.ray_headers import RayHeadersMiddleware
from serve_app.api.write_now import WriteNowMiddleware

Headers = list[tuple[bytes, bytes]]


async def receive() -> Message:
    raise AssertionError("nothing reads the request here")


async def seen_by_ray(*headers: tuple[bytes, bytes]) -> tuple[Headers, Headers]:
    """The headers that Ray's own middleware hands on, and those of the response."""
    seen: list[Scope] = []
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": list(headers)}
    await RayHeadersMiddleware(RequestIdMiddleware(app))(scope, receive, send)
    return seen[0]["headers"], sent[0]["headers"]


@pytest.mark.parametrize("given", [b"caf\xe9", b"caf\xc3\xa9", b"", b"a b", b"a" * 257])
async def test_an_id_of_another_form_is_replaced_inside_and_on_the_response(given: bytes) -> None:
    within, response = await seen_by_ray((b"x-request-id", given))

    (made,) = [value for name, value in within if name == b"x-request-id"]
    assert made != given
    assert made.decode("ascii")
    assert [value for name, value in response if name.lower() == b"x-request-id"] == [made]


async def test_a_usable_id_is_kept() -> None:
    within, response = await seen_by_ray((b"x-request-id", b"trace/42"))

    assert within == [(b"x-request-id", b"trace/42")]
    assert response == [(b"x-request-id", b"trace/42")]


@pytest.mark.parametrize("name", [b"x-session-id", b"x_session_id", b"serve_multiplexed_model_id"])
async def test_a_header_that_ray_cannot_decode_is_taken_out(name: bytes) -> None:
    within, _ = await seen_by_ray((name, b"\xff"), (b"x-request-id", b"a"), (b"x-own", b"\xff"))

    assert within == [(b"x-request-id", b"a"), (b"x-own", b"\xff")]


def test_ray_accepts_what_the_environment_names() -> None:
    named = call_function_from_import_path(env.ALWAYS["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"])

    assert [made.cls for made in validate_http_proxy_callback_return(named)] == [
        RayHeadersMiddleware,
        WriteNowMiddleware,
    ]
