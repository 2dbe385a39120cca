"""Server-sent events as they come off the wire."""

import json

import httpx
import pytest

from tests.integration.cluster import Running
from tests.integration.conftest import CHAT
from tests.integration.sse import over_http_1_0


def raw_stream(http: httpx.Client, path: str, body: dict) -> tuple[httpx.Response, list[bytes]]:
    with http.stream("POST", path, json=body) as reply:
        return reply, list(reply.iter_raw())


def frames(chunks: list[bytes]) -> list[str]:
    text = b"".join(chunks).decode()
    assert text.endswith("\n\n")
    return text.removesuffix("\n\n").split("\n\n")


def test_the_headers_are_those_of_an_event_stream(http: httpx.Client) -> None:
    body = {"model": CHAT, "messages": [{"role": "user", "content": "sea"}], "max_tokens": 4, "stream": True}
    reply, chunks = raw_stream(http, "/v1/chat/completions", body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "no-cache" in reply.headers["cache-control"]
    assert reply.headers["x-accel-buffering"] == "no"
    assert frames(chunks)[-1] == "data: [DONE]"


def test_a_frame_is_never_split_inside_a_character(http: httpx.Client) -> None:
    """Bytes of the multi-byte text are forced by a grammar, so they come whatever the model knows."""
    text = "naïve — “größer” 海 🌊 مرحبا"
    body = {
        "model": CHAT,
        "messages": [{"role": "user", "content": "sea"}],
        "max_tokens": 200,
        "stream": True,
        "structured_outputs": {"choice": [text]},
    }
    _, chunks = raw_stream(http, "/v1/chat/completions", body)
    for chunk in chunks:
        chunk.decode()  # every piece of the wire is whole UTF-8
    events = [json.loads(frame.removeprefix("data: ")) for frame in frames(chunks)[:-1]]
    deltas = [event["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(deltas) == text
    assert "\ufffd" not in "".join(deltas)


@pytest.mark.parametrize(
    "headers", [[], ["Connection: keep-alive"], ["Host: localhost", "Connection: close"]]
)
def test_http_1_0_gets_the_same_stream_without_chunks(
    app: Running, http: httpx.Client, headers: list[str]
) -> None:
    body = {"prompt": "The tide", "max_tokens": 20, "temperature": 0}
    head, events = over_http_1_0(app.port, "/generate", {**body, "stream": True}, *headers)
    assert "transfer-encoding" not in head
    tokens = [json.loads(frame.removeprefix("data: ")) for frame in frames([events])[:-1]]
    head, whole = over_http_1_0(app.port, "/generate", body, *headers)
    assert f"content-length: {len(whole)}" in head
    assert [token["token_id"] for token in tokens] == json.loads(whole)["token_ids"]
