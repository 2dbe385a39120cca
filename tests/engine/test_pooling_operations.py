"""The operations of pooling models: beside vLLM's own API on the same engine, and their bounds on a stub."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.datastructures import State
from starlette.responses import JSONResponse
from vllm.entrypoints.launchers.app import build_app

from serve_app.api.engine_client import EngineReply, Operation
from serve_app.api.errors import ApiError
from serve_app.engine.chat_operations import Serving
from serve_app.engine.local_client import LocalEngine
from serve_app.engine.pooling_operations import TASKS, pool
from tests.engine.calls import changed, engine_call
from tests.engine.stub_engine_core import configured, real_serving
from tests.engine.tiny_models import cross_encoder

SEA = [{"role": "user", "content": "sea"}]
LONG = "the tide " * 400
"""More tokens than the context, and fewer characters than it could have."""
PATHS: dict[Operation, str] = {
    "embeddings": "/v1/embeddings",
    "score": "/score",
    "rerank": "/v2/rerank",
    "pooling": "/pooling",
    "classify": "/classify",
}
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Both:
    """A pooling model behind vLLM's own API, and behind ours, on the same engine."""

    kind: str
    """Which of the models of `MODELS`."""
    local: LocalEngine
    vllm: httpx.AsyncClient

    async def ours(self, operation: Operation, body: Body) -> tuple[int, Any]:
        """Return the status and the document of our answer. The document of an error is its param."""
        try:
            async with self.local.call(engine_call(operation, json.dumps(body).encode(), "r-1")) as reply:
                return reply.status, json.loads(reply.body)
        except ApiError as error:
            return error.status, error.param

    async def theirs(self, operation: Operation, body: Body) -> tuple[int, Any]:
        reply = await self.vllm.post(PATHS[operation], json=body)
        return reply.status_code, reply.json()


MODELS = ("embedder", "ranker", "classifier")
"""The embedded model as a model of embeddings, a cross-encoder that scores pairs, and a model of three
classes."""


@pytest.fixture(scope="module", params=MODELS)
async def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Both]:
    kind: str = request.param
    model: dict[str, Any] = {"task": "embed"}
    if kind != "embedder":
        folder = cross_encoder(tmp_path_factory.mktemp(kind), labels=1 if kind == "ranker" else 3)
        model = {"task": "classify", "model": folder, "dtype": "float32"}
    settings, namespace, config = configured(max_model_len=512, **model)
    async with real_serving(namespace, config) as serving:
        app = build_app(namespace, await serving.engine.get_supported_tasks(), config.model_config)
        app.state = serving.state
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://vllm") as vllm:
            yield Both(kind, LocalEngine(serving, settings, lambda _: None), vllm)


def same(ours: Any, theirs: Any) -> bool:
    """Return whether answers are equal but for id, time and the last bits of numbers, by another batch."""
    if isinstance(ours, dict):
        names = ours.keys() - {"id", "created"}
        return ours.keys() == theirs.keys() and all(same(ours[name], theirs[name]) for name in names)
    if isinstance(ours, list):
        return all(same(*items) for items in zip(ours, theirs, strict=True))
    return bool(ours == (pytest.approx(theirs, abs=1e-4) if isinstance(ours, float) else theirs))


TEXTS = ["sea", "the tide comes in", "a fox"]
PAIRS: list[tuple[Operation, Body]] = [
    ("score", {"text_1": "sea", "text_2": TEXTS}),
    ("score", {"queries": TEXTS, "documents": TEXTS}),
    ("score", {"queries": "sea", "items": TEXTS}),
    ("score", {"data_1": "sea", "data_2": "tide", "model": "tide"}),
    ("score", {"text_1": "sea", "text_2": LONG, "truncate_prompt_tokens": 9, "user": None}),
    ("rerank", {"query": "sea", "documents": TEXTS}),
    ("rerank", {"query": "sea", "documents": TEXTS, "top_n": 2}),
    ("rerank", {"query": "sea", "documents": [LONG, "fox"], "max_tokens_per_doc": 5}),
    ("pooling", {"input": TEXTS}),
    ("pooling", {"input": [[1, 2, 3]], "encoding_format": "base64"}),
]
ACCEPTED: dict[str, list[tuple[Operation, Body]]] = {
    "embedder": [
        *PAIRS,
        ("embeddings", {"input": TEXTS}),
        ("embeddings", {"input": [1, 2, 3]}),
        ("embeddings", {"messages": SEA, "encoding_format": "base64"}),
        ("embeddings", {"input": SEA, "documents": [{"an": "unknown field"}]}),
        ("pooling", {"messages": SEA}),
    ],
    "ranker": PAIRS,
    "classifier": [("classify", {"input": TEXTS}), ("classify", {"input": [[1], [2, 3]]})],
}
REFUSED_PAIRS: list[tuple[Operation, Body, str | None]] = [
    ("score", {}, "queries"),
    ("score", {"queries": "sea"}, "documents"),
    ("score", {"text_1": "sea"}, "text_2"),
    ("score", {"text_1": 5, "text_2": "sea"}, "text_1"),
    ("score", {"text_1": ["sea", 5], "text_2": "sea"}, "text_1"),
    ("score", {"text_1": [], "text_2": "sea"}, None),
    ("score", {"text_1": "sea", "text_2": []}, None),
    ("score", {"text_1": ["a", "b"], "text_2": TEXTS}, None),
    ("score", {"text_1": "sea", "text_2": LONG}, "text_2"),
    ("score", {"text_1": "sea", "text_2": "tide", "truncate_prompt_tokens": 513}, "truncate_prompt_tokens"),
    ("score", {"text_1": "sea", "text_2": "tide", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ("score", {"text_1": "sea", "text_2": "tide", "max_tokens_per_query": -1}, "max_tokens_per_query"),
    ("score", {"text_1": "sea", "text_2": "tide", "cache_salt": ""}, "cache_salt"),
    ("rerank", {"documents": TEXTS}, "query"),
    ("rerank", {"query": "sea"}, "documents"),
    ("rerank", {"query": ["sea"], "documents": TEXTS}, "query"),
    ("rerank", {"query": "sea", "documents": TEXTS, "top_n": -1}, "top_n"),
    ("rerank", {"query": "sea", "documents": TEXTS, "top_n": "x"}, "top_n"),
    ("rerank", {"query": "sea", "documents": TEXTS, "max_tokens_per_doc": 512}, "max_tokens_per_doc"),
    ("rerank", {"query": "sea", "documents": TEXTS, "priority": "high"}, "priority"),
    ("rerank", {"query": {"content": []}, "documents": TEXTS}, "query"),
    ("rerank", {"query": "sea", "documents": [{"content": [{"type": "text", "text": "a"}]}]}, "documents[0]"),
    ("pooling", {}, "input"),
    ("pooling", {"input": {"a": 1}}, "input"),
    ("pooling", {"input": "sea", "task": "plugin"}, "task"),
    ("pooling", {"input": "sea", "task": "no task"}, "task"),
    ("pooling", {"input": "sea", "task": "token_classify"}, "task"),
    ("pooling", {"input": "sea", "dimensions": 8}, "dimensions"),
    ("pooling", {"input": "sea", "encoding_format": "xml"}, "encoding_format"),
    ("pooling", {"input": "sea", "normalize": True}, "normalize"),
    ("pooling", {"data": "sea"}, "task"),
]
REFUSED: dict[str, list[tuple[Operation, Body, str | None]]] = {
    "ranker": REFUSED_PAIRS,
    "embedder": [("embeddings", {"input": "sea", "dimensions": 0}, None), *REFUSED_PAIRS[-9:]],
    "classifier": [
        ("classify", {"input": []}, None),
        ("classify", {"input": "sea", "use_activation": "maybe"}, "use_activation"),
        ("classify", {"messages": [5]}, "messages[0]"),
    ],
}


UNSUPPORTED: dict[str, list[Operation]] = {
    "embedder": ["classify"],
    "ranker": ["embeddings"],
    "classifier": ["embeddings", "score", "rerank"],
}


async def test_answers_are_those_of_vllms_own_api(engine: Both) -> None:
    for operation, body in ACCEPTED[engine.kind]:
        ours, theirs = await engine.ours(operation, body), await engine.theirs(operation, body)

        assert (ours[0], theirs[0]) == (200, 200), (operation, body, ours, theirs)
        assert same(ours[1], theirs[1]), (operation, body, ours, theirs)


async def test_bad_bodies_are_refused_as_by_vllm(engine: Both) -> None:
    wrong = []
    for operation, body, param in REFUSED[engine.kind]:
        ours, theirs = await engine.ours(operation, body), await engine.theirs(operation, body)
        if ours != (400, param) or theirs[0] != 400:
            wrong.append((operation, body, ours, theirs))
    assert wrong == []


async def test_a_task_that_the_model_cannot_is_refused(engine: Both) -> None:
    for operation in UNSUPPORTED[engine.kind]:
        assert await engine.ours(operation, VALID[operation]) == (400, "model")


async def test_prompt_tokens_of_all_inputs_are_counted(engine: Both) -> None:
    operation, body = ACCEPTED[engine.kind][0]
    request = engine_call(operation, json.dumps(body).encode(), "r-1")
    async with engine.local.call(request) as reply:
        usage = json.loads(reply.body)["usage"]

    assert request.counts.input == usage["prompt_tokens"] > 0
    assert request.counts.output == 0


# Bounds, with a stub of vLLM's handler.


class StubHandler:
    """Answers every request, and notes its salt."""

    def __init__(self, answer: JSONResponse | None = None, pooling_task: str = "") -> None:
        self.answer = JSONResponse({"data": []}) if answer is None else answer
        self.pooling_task = pooling_task
        self.salts: list[str | None] = []

    async def __call__(self, request: Any, raw: Any) -> JSONResponse:
        self.salts.append(request.cache_salt)
        return self.answer


async def run(serving: Serving, operation: Operation, body: Body, handler: StubHandler) -> EngineReply:
    state = State({TASKS[operation][0]: handler})
    call = engine_call(operation, json.dumps(body).encode(), "r-1")
    return await pool(Serving(serving.engine, state), changed(call, cache_salt="key-a"))


VALID: dict[Operation, Body] = {
    "embeddings": {"input": "sea"},
    "score": {"text_1": "sea", "text_2": "tide"},
    "rerank": {"query": "sea", "documents": ["tide"]},
    "pooling": {"messages": SEA},
    "classify": {"input": [[1], [2]]},
}


@pytest.mark.parametrize("operation", VALID)
async def test_the_handler_gets_the_salt_of_the_key(serving: Serving, operation: Operation) -> None:
    handler = StubHandler()

    reply = await run(serving, operation, VALID[operation], handler)

    assert (reply.status, reply.body) == (200, b'{"data":[]}')
    assert handler.salts == ["key-a"]


@pytest.mark.parametrize("operation", VALID)
async def test_an_error_of_the_handler_is_an_error_here(serving: Serving, operation: Operation) -> None:
    refused = JSONResponse({"error": {"message": "no", "type": "x", "param": "model", "code": 422}}, 422)

    with pytest.raises(ApiError, match="no") as caught:
        await run(serving, operation, VALID[operation], StubHandler(refused))

    assert (caught.value.status, caught.value.param) == (422, "model")


HUGE = "a" * 100_000
"""More characters than the context of 256 tokens could have."""


@pytest.mark.parametrize(
    ("operation", "body", "param"),
    [
        ("embeddings", {"input": ["a"] * 2049}, "input"),
        ("embeddings", {"input": [2048]}, "input"),
        ("classify", {"input": [[1], [-1]]}, "input"),
        ("pooling", {"input": ["a"] * 2049}, "input"),
        ("pooling", {"input": HUGE}, "input"),
        ("pooling", {"input": "sea", "encoding_format": "bytes"}, "encoding_format"),
        ("embeddings", {"input": "sea", "encoding_format": "bytes_only"}, "encoding_format"),
        ("score", {"queries": "a", "documents": ["a"] * 2049}, "documents"),
        ("score", {"queries": ["a"] * 2049, "documents": ["a"] * 2049}, "queries"),
        ("score", {"text_1": HUGE, "text_2": "a", "truncate_prompt_tokens": 5}, "text_1"),
        ("score", {"text_1": "a", "text_2": ["b", HUGE]}, "text_2"),
        ("rerank", {"query": HUGE, "documents": ["a"], "max_tokens_per_query": 5}, "query"),
        ("rerank", {"query": "a", "documents": HUGE}, "documents"),
        ("rerank", {"query": "a", "documents": "b", "instruction": HUGE}, "chat_template_kwargs"),
        ("rerank", {"query": "a", "documents": "b", "top_n": 1 << 31}, "top_n"),
    ],
)
async def test_a_body_out_of_bounds_reaches_no_handler(
    serving: Serving, operation: Operation, body: Body, param: str
) -> None:
    handler = StubHandler()

    with pytest.raises(ApiError) as caught:
        await run(serving, operation, body, handler)

    assert (caught.value.status, caught.value.param) == (400, param)
    assert handler.salts == []


@pytest.mark.parametrize("body", [{"truncate_prompt_tokens": 5}, {"max_tokens_per_doc": 5}])
async def test_a_document_may_be_long_if_it_is_truncated(serving: Serving, body: Body) -> None:
    handler = StubHandler()

    await run(serving, "rerank", {"query": "a", "documents": [HUGE], **body}, handler)

    assert len(handler.salts) == 1


@pytest.mark.parametrize(
    ("task", "inputs", "refused"),
    [
        ("token_embed", ["a" * 256] * 512, False),
        ("token_embed", ["a" * 256] * 513, True),
        ("token_embed", [[1] * 256] * 513, True),
        ("token_embed", ["\u6f6e" * 85] * 600, True),
        ("token_classify", "a" * 300, False),
        ("embed", ["a" * 256] * 513, False),
    ],
)
async def test_vectors_for_each_token_are_bounded_in_all(
    serving: Serving, task: str, inputs: Any, refused: bool
) -> None:
    """The hidden size is 256 and the context 256 tokens, so 512 whole contexts have 2^25 numbers."""
    handler = StubHandler(pooling_task=task)

    if refused:
        with pytest.raises(ApiError, match="at most 33554432") as caught:
            await run(serving, "pooling", {"input": inputs}, handler)
        assert caught.value.param == "input"
    else:
        await run(serving, "pooling", {"input": inputs}, handler)
        assert len(handler.salts) == 1
