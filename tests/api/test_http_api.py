"""The application as a whole: errors in one shape, operations, documentation."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve_app.api.api_keys import ApiKeyFile
from tests.api.server import Server, error_of


async def test_an_unknown_path_is_a_404_in_openais_shape(server: Server) -> None:
    reply = await server.http.get("/v1/chat")

    error = error_of(reply)
    assert reply.status_code == 404
    assert (error["type"], error["code"]) == ("invalid_request_error", "not_found")
    assert error["message"].startswith(
        "GET /v1/chat: no such path; this server takes POST at /v1/chat/completions, "
    )


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("GET", "/generate", "POST"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/ready", "GET"),
    ],
)
async def test_wrong_method_is_a_405_with_the_allowed_one(
    server: Server, method: str, path: str, allowed: str
) -> None:
    reply = await server.http.request(method, path)

    error = error_of(reply)
    assert reply.status_code == 405
    assert error["code"] == "method_not_allowed"
    assert error["message"].startswith(f"{method} {path}: ")
    assert reply.headers["allow"] == allowed


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for item in node:
            yield from references(item)


async def test_every_reference_of_the_openapi_document_leads_somewhere(server: Server) -> None:
    document = (await server.http.get("/openapi.json")).json()

    found = set(references(document))
    assert len(found) > 20
    for reference in found:
        target: Any = document
        for key in reference.removeprefix("#/").split("/"):
            assert key in target, reference
            target = target[key]


async def test_every_path_that_takes_a_body_describes_it(server: Server) -> None:
    paths = (await server.http.get("/openapi.json")).json()["paths"]

    described = {
        path: list(operations["post"]["requestBody"]["content"])
        for path, operations in paths.items()
        if "post" in operations
    }
    for path in ("/v1/audio/transcriptions", "/v1/audio/translations"):
        assert described.pop(path) == ["multipart/form-data"]
    assert described == {
        path: ["application/json"]
        for path in (
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/responses",
            "/v1/messages",
            "/v1/messages/count_tokens",
            "/v1/embeddings",
            "/v1/score",
            "/score",
            "/v1/rerank",
            "/v2/rerank",
            "/rerank",
            "/classify",
            "/pooling",
            "/tokenize",
            "/detokenize",
            "/generate",
        )
    }


async def test_every_operation_lists_its_errors_with_their_schema(server: Server) -> None:
    paths = (await server.http.get("/openapi.json")).json()["paths"]

    def errors(path: str, method: str) -> dict[str, str]:
        return {
            status: answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            for status, answer in paths[path][method]["responses"].items()
            if status >= "400"
        }

    body = dict.fromkeys(("400", "403", "404", "408", "413", "415", "421", "429", "500", "503"), "Error")
    assert errors("/v1/chat/completions", "post") == body
    assert errors("/v1/messages", "post") == dict.fromkeys(body, "MessageError")
    assert errors("/generate", "post") == body | {"422": "InvalidError"}
    assert errors("/v1/models/{model}", "get") == dict.fromkeys(("404", "421", "429", "500", "503"), "Error")


async def test_operations_that_need_a_key_list_401(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret-key-1\n")
    server = Server(api_keys=ApiKeyFile(str(tmp_path / "keys")))
    headers = {"Authorization": "Bearer secret-key-1"}
    paths = (await server.http.get("/openapi.json", headers=headers)).json()["paths"]

    keyed = {path for path, found in paths.items() if "401" in next(iter(found.values()))["responses"]}
    assert set(paths) - keyed == {"/health", "/ready", "/metrics"}


async def test_the_openapi_document_is_plain_json_and_built_once(server: Server) -> None:
    first = await server.http.get("/openapi.json")
    second = await server.http.get("/openapi.json")

    assert first.content == second.content
    assert json.loads(first.content)["info"]["title"] == "Tideserve"
