"""Bodies with one extreme value each, made from the request schemas, so that a new field is among them."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from serve_app.api.generate_body import GenerateRequest
from serve_app.api.schemas import component_schemas

DEEP = 190
"""Levels. The parser takes 200."""

EXTREMES = (
    "2147483647",
    "2147483648",
    "4294967296",
    "9223372036854775808",
    "18446744073709551616",
    "-1",
    "-9223372036854775808",
    "-9223372036854775809",
    "1" + "0" * 400,
    "1e308",
    "-1e308",
    "1e-308",
    "1e999",
    "NaN",
    "-Infinity",
    '"18446744073709551616"',
    '"x"',
    '""',
    '"\\ud800"',
    '"\\u0000"',
    json.dumps("tide " * 4000),
    "null",
    "true",
    "[]",
    "{}",
    '["x"]',
    "[-1,18446744073709551616]",
    '{"a":18446744073709551616}',
    '{"18446744073709551616":1e308}',
    "[" * DEEP + "]" * DEEP,
    '{"a":' * DEEP + "1" + "}" * DEEP,
    "[" * 1000 + "]" * 1000,
    json.dumps(list(range(1500))),
    json.dumps({str(i): 1 for i in range(1500)}),
)
"""JSON texts, so that what no encoder writes is among them."""


def extremes(place: "Place", number: int) -> Sequence[str]:
    """Return those to put into a place; a third of them within messages, which the engine core never gets."""
    return EXTREMES[number % 3 :: 3] if place.path.startswith("messages[0].") else EXTREMES


UNKNOWN = "unknown"
"""A field that no schema has."""
_HERE = "\0here"
_SEA = [{"role": "user", "content": "sea"}]
_TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}
_BODIES: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "/v1/chat/completions": (("ChatCompletionBody", {"messages": _SEA, "max_tokens": 1}),),
    "/v1/responses": (("ResponseBody", {"input": "sea", "max_output_tokens": 1}),),
    "/v1/messages": (("MessageBody", {"messages": _SEA, "max_tokens": 1}),),
    "/v1/messages/count_tokens": (("CountTokensBody", {"messages": _SEA}),),
    "/v1/completions": (("CompletionBody", {"prompt": "sea", "max_tokens": 1}),),
    "/v1/embeddings": (
        ("EmbeddingCompletionRequest", {"input": "sea"}),
        ("EmbeddingChatRequest", {"messages": _SEA}),
    ),
    "/v1/score": (
        ("ScoreTextRequest", {"text_1": "sea", "text_2": ["tide"]}),
        ("ScoreQueriesDocumentsRequest", {"queries": "sea", "documents": "tide"}),
        ("ScoreQueriesItemsRequest", {"queries": "sea", "items": "tide"}),
        ("ScoreDataRequest", {"data_1": "sea", "data_2": "tide"}),
    ),
    "/v1/rerank": (("RerankRequest", {"query": "sea", "documents": ["tide"]}),),
    "/pooling": (
        ("PoolingCompletionRequest", {"input": "sea"}),
        ("PoolingChatRequest", {"messages": _SEA}),
    ),
    "/tokenize": (
        ("TokenizeChatRequest", {"messages": _SEA}),
        ("TokenizeCompletionRequest", {"prompt": "sea"}),
    ),
    "/detokenize": (("DetokenizeBody", {"tokens": [1]}),),
}
URLS = (*_BODIES, "/generate")
# What a field needs beside it for the engine to look at it at all.
_WITH: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "logprob_token_ids": {"logprobs": 1},
    "stream_options": {"stream": True},
    "length_penalty": {"use_beam_search": True, "n": 2, "max_tokens": 2},
    "tools": {"tool_choice": "required"},
    "tool_choice": {"tools": [_TOOL]},
    "min_tokens": {"stop_token_ids": [5]},
    "top_k": {"temperature": 1},
    "seed": {"temperature": 1},
    "max_tokens": {"stop": "e"},
    "repetition_detection": {"max_tokens": 8},
}


class Place:
    """Somewhere in a body.

    Args:
        path: As errors name it.
        body: With `_HERE` where the value goes.
    """

    def __init__(self, url: str, path: str, body: dict[str, Any]) -> None:
        self.url = url
        self.path = path
        self._before, self._after = json.dumps(body).split(json.dumps(_HERE))

    def body(self, value: str) -> bytes:
        """The body with a JSON text there."""
        return (self._before + value + self._after).encode()


def bodies(url: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The schemas of the bodies of `url`, each with the least that does something."""
    if url == "/generate":
        yield GenerateRequest.model_json_schema(), {"prompt": "sea", "max_tokens": 1}
    for name, base in _BODIES.get(url, ()):
        yield _resolved({"$ref": name}), base


def places(url: str, model: str, seen: set[str]) -> Iterator[Place]:
    """Every field of the bodies of `url`, and all within it.

    Args:
        seen: Of nested objects, those that are left out. The others are added.
    """
    for schema, base in bodies(url):
        yield from _fields(url, schema, {"model": model, **base}, seen)


def _fields(url: str, schema: dict[str, Any], base: dict[str, Any], seen: set[str]) -> Iterator[Place]:
    for name, field in schema["properties"].items():
        beside = {} if url == "/generate" else _WITH.get(name, {})  # which refuses unknown fields
        for path, wrap in _within(field, seen):
            yield Place(url, name + path, {**base, **beside, name: wrap(_HERE)})
    yield Place(url, UNKNOWN, {**base, UNKNOWN: _HERE})


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = component_schemas()[schema["$ref"].rpartition("/")[2]]
    return schema


Wrap = Callable[[Any], Any]


def _within(schema: Any, seen: set[str]) -> Iterator[tuple[str, Wrap]]:
    """The path to a value and to all within it, with what puts another there."""
    yield "", lambda value: value
    yield from _deeper(schema, seen)


def _deeper(schema: Any, seen: set[str]) -> Iterator[tuple[str, Wrap]]:
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        if schema["$ref"] in seen:
            return
        seen.add(schema["$ref"])
        schema = _resolved(schema)
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _deeper(branch, seen)
    if "items" in schema:
        for path, wrap in _within(schema["items"], seen):
            yield f"[0]{path}", partial(_in_list, wrap)
    least = _least(schema)
    for name, field in schema.get("properties", {}).items():
        for path, wrap in _within(field, seen):
            yield f".{name}{path}", partial(_in_object, least, name, wrap)
    if schema.get("additionalProperties") and "properties" not in schema:
        for path, wrap in _within(schema["additionalProperties"], seen):
            yield f".5{path}", partial(_in_object, {}, "5", wrap)


def _in_list(wrap: Wrap, value: Any) -> Any:
    return [wrap(value)]


def _in_object(least: dict[str, Any], name: str, wrap: Wrap, value: Any) -> Any:
    return {**least, name: wrap(value)}


def _least(schema: Any) -> Any:
    """The least that fits a schema."""
    schema = _resolved(schema)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return _least(branch)
    if schema.get("type") == "object":
        return {name: _least(schema["properties"][name]) for name in schema.get("required", ())}
    return {"array": [], "string": "a", "integer": 1, "number": 1.0, "boolean": True}.get(schema.get("type"))
