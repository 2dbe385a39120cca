from __future__ import annotations

import pytest

from tests.api.server import Server

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


async def test_head_of_nothing_is_a_404_without_a_body(server: Server) -> None:
    reply = await server.http.head("/v1/nothing")

    assert (reply.status_code, reply.content) == (404, b"")


async def test_head_of_what_takes_a_post_is_a_405(server: Server) -> None:
    reply = await server.http.head("/v1/completions")

    assert (reply.status_code, reply.content, reply.headers["allow"]) == (405, b"", "POST")
    assert server.chat.requests == []
