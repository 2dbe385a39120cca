"""Every field of every request schema with extreme values and null, on engines that must outlive it."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, get_args, get_type_hints

import aiohttp
import httpx
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as TextParams
from openai.types.embedding_create_params import EmbeddingCreateParams

from tests.integration.cluster import Running
from tests.integration.conftest import CHAT, EMBED
from tests.integration.extremes import UNKNOWN, URLS, bodies, extremes, places
from tests.integration.prometheus import settled

AT_ONCE = 48
ANSWER_WITHIN_S = 60.0
SEA = [{"role": "user", "content": "sea"}]


def model_of(url: str) -> str:
    return EMBED if url in ("/v1/embeddings", "/v1/score", "/v1/rerank", "/pooling") else CHAT


def engines(app: Running) -> set[int]:
    """The processes of the engines: each has a replica and a core."""
    titles = ("ray::ServeReplica:tideserve:Engine", "VLLM::EngineCor")
    return {process.pid for title in titles for process in app.processes(title)}


def extreme_bodies() -> list[tuple[str, bytes]]:
    seen: set[str] = set()
    found = [place for url in URLS for place in places(url, model_of(url), seen)]
    return [
        (place.url, place.body(text))
        for number, place in enumerate(found)
        for text in extremes(place, number)
    ]


Judge = Callable[[str, int, str], str]
"""What is wrong with an answer, by the path, the status and the body."""


async def send_all(app: Running, requests: Iterable[tuple[str, bytes]], judge: Judge) -> list[str]:
    """Send them, many at a time. Returns those whose answers are wrong."""
    found: list[str] = []
    left = iter(requests)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(
        app.url, headers=headers, timeout=aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
    ) as http:

        async def client() -> None:
            for url, body in left:
                async with http.post(url, data=body) as reply:
                    text = await reply.text()
                    if wrong := judge(url, reply.status, text):
                        found.append(f"{url} {body[:300]!r}: {reply.status} {text[:300]}: {wrong}")

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(client())
    return found


def no_server_error(url: str, status: int, text: str) -> str:
    if status >= 500:
        return "a server error"
    if status == 200:
        return ""
    error = json.loads(text)["error"]
    kinds = ("invalid_request_error", "not_found_error")  # the second is Anthropic's
    if status not in (400, 404, 422, 429) or error["type"] not in kinds:
        return "not a client's error"
    first = (error.get("param") or "").partition(".")[0].partition("[")[0]
    known = {UNKNOWN, *(name for schema, _ in bodies(url) for name in schema["properties"])}
    return f"{error['param']} is no path in the body" if first and first not in known else ""


def succeeded(_url: str, status: int, _text: str) -> str:
    return "" if status == 200 else "no answer"


@pytest.mark.parametrize("every", [21, pytest.param(1, marks=pytest.mark.long)])
async def test_no_extreme_value_ends_or_hangs_an_engine(app: Running, http: httpx.Client, every: int) -> None:
    """Every 21st value, or all."""
    before = engines(app)
    assert len(before) == 6  # of three models

    assert await send_all(app, extreme_bodies()[::every], no_server_error) == []

    settled(http, CHAT, EMBED)  # nothing is running or waiting
    assert engines(app) == before


def null_bodies(url: str) -> list[bytes]:
    """Bodies of `url` with each optional field null, and with all of them."""
    found = []
    for schema, least in bodies(url):
        base = {"model": model_of(url), **least}
        names = schema["properties"].keys() - {"model", "prompt", *schema.get("required", ())}
        made = [{**base, name: None} for name in sorted(names)]
        found += [json.dumps(body).encode() for body in (*made, {**base, **dict.fromkeys(names)})]
    return found


async def test_null_for_an_optional_field_means_not_given(app: Running) -> None:
    requests = [(url, body) for url in URLS for body in null_bodies(url)]

    assert len(requests) > 150
    assert await send_all(app, requests, succeeded) == []


@pytest.mark.parametrize(
    ("url", "params", "base"),
    [
        ("/v1/chat/completions", ChatParams, {"messages": SEA, "max_completion_tokens": 1}),
        ("/v1/completions", TextParams, {"prompt": "sea", "max_tokens": 1}),
        ("/v1/embeddings", EmbeddingCreateParams, {"input": "sea"}),
    ],
)
async def test_what_openais_client_calls_nullable_may_be_null(
    app: Running, url: str, params: Any, base: dict[str, Any]
) -> None:
    hints = get_type_hints(params)
    names = [
        name
        for name, hint in hints.items()
        if type(None) in get_args(hint) and name not in ("model", "prompt")
    ]
    sent = [{"model": model_of(url), **base, name: None} for name in names]
    sent += [{**body, "stream": True} for body in sent if url != "/v1/embeddings"]

    assert await send_all(app, [(url, json.dumps(body).encode()) for body in sent], succeeded) == []


ANSWER = {"role": "assistant", "content": None, "refusal": None, "audio": None, "function_call": None}
SPOKEN = {"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": None}
FUNCTION = {"name": "a", "description": None, "parameters": None, "strict": None}
SCHEMA = {"name": "a", "description": None, "schema": {}, "strict": None}
NESTED = [
    {"messages": [ANSWER, *SEA]},
    {"messages": [SPOKEN, *SEA]},
    {"tools": [{"type": "function", "function": FUNCTION}]},
    {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    {"response_format": {"type": "text", "json_schema": None}},
    {"stream": True, "stream_options": {"include_usage": None}},
]


async def test_null_within_a_field_means_not_given(app: Running) -> None:
    sent = [{"model": CHAT, "messages": SEA, "max_tokens": 1, **fields} for fields in NESTED]

    requests = [("/v1/chat/completions", json.dumps(body).encode()) for body in sent]

    assert await send_all(app, requests, succeeded) == []
