"""Whatever a client sends: a 4xx in OpenAI's shape that names the field, and a server that goes on."""

import uuid

import httpx
import openai
import pytest

from tests.integration.cluster import Running
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


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
@pytest.mark.parametrize(
    ("fields", "file", "status", "param", "code"),
    [
        ({"model": CHAT}, b"RIFF", 400, "model", "unsupported_feature"),
        ({"model": CHAT, "stream": "true"}, b"RIFF", 400, "model", "unsupported_feature"),
        ({"model": "nope"}, b"RIFF", 404, "model", "model_not_found"),
        ({"model": CHAT}, b"", 400, "file", "invalid_value"),
        ({"model": CHAT}, b"x" * (8 << 20) + b"x", 413, "file", "file_too_large"),
    ],
)
def test_speech_that_cannot_be_read_is_refused(
    app: Running, path: str, fields: dict, file: bytes, status: int, param: str, code: str
) -> None:
    reply = httpx.post(f"{app.url}{path}", data=fields, files={"file": ("sea.wav", file)}, timeout=60)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (status, param, code)


def test_a_wrong_method_or_path_has_the_same_shape(http: httpx.Client) -> None:
    for reply, status in ((http.get(CHAT_PATH), 405), (http.get("/v1/nothing"), 404)):
        assert reply.status_code == status
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert reply.headers["x-request-id"]


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


def test_the_server_still_answers_after_all_that(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=CHAT, messages=SEA, max_tokens=3)
    assert reply.choices[0].message.content is not None


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ({"Host": "evil.example"}, 421, "host_not_allowed"),
        ({"Origin": "https://evil.example"}, 403, "origin_not_allowed"),
    ],
)
def test_a_page_of_another_site_gets_no_answer(
    http: httpx.Client, headers: dict, status: int, code: str
) -> None:
    reply = http.post(CHAT_PATH, json=chat(), headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert reply.headers["x-request-id"]
    assert http.get("/health", headers={"Host": "10.0.0.1"}).status_code == 200
    assert http.get("/ready", headers={"Host": "10.0.0.1"}).status_code == 200
