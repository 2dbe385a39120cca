"""Whatever a client sends: a 4xx in OpenAI's shape that names the field, and a server that goes on."""

import uuid

import httpx
import pytest

from tests.integration.conftest import CHAT

CHAT_PATH = "/v1/chat/completions"
SEA = [{"role": "user", "content": "sea"}]


def chat(**fields):
    return {"model": CHAT, "messages": SEA, "max_tokens": 4, **fields}


def completion(**fields):
    return {"model": CHAT, "prompt": "sea", "max_tokens": 4, **fields}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT_PATH, chat(model="nope"), 404, "model"),
        (CHAT_PATH, chat(messages=[{"content": "x"}]), 400, "messages[0].role"),
        (CHAT_PATH, chat(temperature=9), 400, "temperature"),
        (CHAT_PATH, chat(logit_bias={"999999": 1}), 400, "logit_bias"),
        (CHAT_PATH, chat(structured_outputs={"regex": "[0-9"}), 400, None),
        ("/v1/completions", completion(prompt=[[1, 2], [-1]]), 400, "prompt[0]"),
        ("/detokenize", {"model": CHAT, "tokens": [99_999]}, 400, "tokens"),
        ("/generate", {"prompt": "x", "max_tokens": 99_999}, 400, "max_tokens"),
    ],
)
def test_a_bad_field_is_named(http: httpx.Client, path: str, body: dict, status: int, param: str) -> None:
    reply = http.post(path, json=body)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    if param is not None:
        assert error["param"] == param
    assert len(reply.headers.get_list("x-request-id")) == 1


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [({"model": "nope"}, 404, "model"), ({"limit": 0}, 422, "limit"), ({"after": "x"}, 422, "after")],
)
def test_a_bad_query_is_named(http: httpx.Client, query: dict, status: int, param: str) -> None:
    reply = http.get("/autoscaling/decisions", params=query)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_a_request_id_is_kept(http: httpx.Client) -> None:
    reply = http.get("/health", headers={"X-Request-ID": "mine-42"})
    assert reply.headers.get_list("x-request-id") == ["mine-42"]


@pytest.mark.parametrize("given", [b"caf\xe9", b"caf\xc3\xa9", b"a b", b"a" * 257])
@pytest.mark.parametrize("path", ["/health", "/v1/models"])  # HAProxy's answer and the ingress's
def test_a_request_id_of_another_form_is_replaced(http: httpx.Client, path: str, given: bytes) -> None:
    reply = http.get(path, headers=[(b"X-Request-ID", given)])
    assert reply.status_code == 200
    (made,) = reply.headers.get_list("x-request-id")
    assert uuid.UUID(made)


@pytest.mark.parametrize(
    "name", [b"x-session-id", b"serve_multiplexed_model_id", b"x-request-timeout-seconds"]
)
def test_a_ray_header_of_odd_bytes_makes_no_server_error(http: httpx.Client, name: bytes) -> None:
    assert http.get("/health", headers=[(name, b"\xff\xe9")]).status_code == 200
