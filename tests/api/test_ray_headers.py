import inspect
import pickle
import re

import pytest
from ray.serve._private import constants, http_util, proxy, replica
from ray.serve._private.http_util import RequestIdMiddleware, validate_http_proxy_callback_return
from ray.serve._private.utils import call_function_from_import_path
from starlette.types import Message, Receive, Scope, Send

from serve_app import env
from serve_app.api.engine_response import WriteNowMiddleware
from serve_app.api.request_head import RayHeadersMiddleware, request_timeout_s
from tests.refusal import refusal_of

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
async def test_unusable_id_is_replaced_inside_and_on_the_response(given: bytes) -> None:
    within, response = await seen_by_ray((b"x-request-id", given))

    (made,) = [value for name, value in within if name == b"x-request-id"]
    assert made != given
    assert made.decode("ascii")
    assert [value for name, value in response if name.lower() == b"x-request-id"] == [made]


@pytest.mark.parametrize("name", [b"x-session-id", b"x_session_id", b"traceparent", b"tracestate"])
async def test_a_header_that_ray_cannot_decode_is_taken_out(name: bytes) -> None:
    within, _ = await seen_by_ray((name, b"\xff"), (b"x-request-id", b"a"), (b"x-own", b"\xff"))

    assert within == [(b"x-request-id", b"a"), (b"x-own", b"\xff")]


@pytest.mark.parametrize(
    "name",
    [
        b"x-request-disconnect-disabled",
        b"x-request-timeout-seconds",
        b"serve_multiplexed_model_id",
        b"serve-multiplexed-model-id",
    ],
)
async def test_a_header_that_ray_would_obey_never_reaches_it(name: bytes) -> None:
    within, _ = await seen_by_ray((name, b"?1"), (b"x-request-id", b"a"))

    assert within == [(b"x-request-id", b"a")]


def obeyed_by_ray() -> set[str]:
    """The names of request headers that Ray's HTTP servers ask for, by the constants in their source."""
    source = "".join(inspect.getsource(module) for module in (proxy, replica, http_util))
    known = {name: value for name, value in vars(constants).items() if isinstance(value, str)}
    return {
        known[name].replace("_", "-")
        for name in re.findall(r"\bSERVE_(?!LOG_)[A-Z_]+\b", source)
        if name.endswith(("_HEADER", "_ID")) and name in known
    }


def test_every_header_that_ray_knows_has_been_thought_of() -> None:
    assert obeyed_by_ray() == {
        "x-request-id",  # kept if usable
        "x-session-id",  # a hint for Ray's routers, ours too
        "x-request-timeout-seconds",
        "x-request-disconnect-disabled",
        "serve-multiplexed-model-id",
    }


async def asked_for(*values: bytes, ray: bool = True) -> float | None:
    """The timeout that the application finds behind Ray, or without Ray, for these values of the header."""
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(pickle.loads(pickle.dumps(scope)))  # as Ray's own proxy sends it to a replica

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent here")

    scope = {"type": "http", "headers": [(b"x-request-timeout-seconds", value) for value in values]}
    await (RayHeadersMiddleware(app) if ray else app)(scope, receive, send)
    return request_timeout_s(scopes[0])


@pytest.mark.parametrize("ray", [True, False])
async def test_the_timeout_reaches_the_application(ray: bool) -> None:
    assert await asked_for(ray=ray) is None
    for value, seconds in ((b"2.5", 2.5), (b"30", 30.0), (b".5", 0.5), (b"86400", 86400.0), (b"1.", 1.0)):
        assert await asked_for(value, ray=ray) == seconds


@pytest.mark.parametrize(
    "values",
    [[b"0"], [b"0.0"], [b"-1"], [b"86400.1"], [b"nan"], [b"inf"], [b"1e3"], [b"+5"], [b"1_0"], [b""], [b"5s"],
     [b"caf\xe9"], [b"9" * 400], [b"5", b"6"], [b"5", b"5"]],
)  # fmt: skip
async def test_a_timeout_that_is_none_is_refused_with_its_bound(values: list[bytes]) -> None:
    error = await refusal_of(asked_for(*values))
    assert (error.status, error.code, error.param) == (400, "invalid_value", "X-Request-Timeout-Seconds")
    assert error.message.startswith("X-Request-Timeout-Seconds = '")
    assert "above 0 and at most 86400" in error.message


def test_ray_accepts_what_the_environment_names() -> None:
    named = call_function_from_import_path(env.ALWAYS["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"])

    assert [made.cls for made in validate_http_proxy_callback_return(named)] == [
        RayHeadersMiddleware,
        WriteNowMiddleware,
    ]
