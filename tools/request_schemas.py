"""Write the request schemas down from the installed vLLM: `python -m tools.request_schemas`."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest

from serve_app.api import schemas

FILE = Path(schemas.__file__).with_name("bodies.json")
_BODIES: dict[str, Any] = {
    "chat_completions": ChatCompletionRequest,
    "completions": CompletionRequest,
    "embeddings": EmbeddingRequest,
    "score": ScoreRequest,
    "rerank": RerankRequest,
    "pooling": PoolingRequest,
    "classify": ClassificationRequest,
    "tokenize": TokenizeRequest,
    "detokenize": DetokenizeRequest,
}
_NAMES = {
    "chat_completions": "ChatCompletionBody",
    "completions": "CompletionBody",
    "embeddings": "EmbeddingBody",
    "score": "ScoreBody",
    "rerank": "RerankBody",
    "pooling": "PoolingBody",
    "classify": "ClassificationBody",
    "tokenize": "TokenizeBody",
    "detokenize": "DetokenizeBody",
}
# vLLM's prose stays vLLM's; names, types, bounds and defaults are what a client needs.
_PROSE = ("description", "examples")


def bodies() -> dict[str, Any]:
    """`{"bodies": {operation: schema name}, "schemas": {name: schema}}`."""
    inputs: list[tuple[str, Literal["validation"], TypeAdapter[Any]]] = [
        (name, "validation", TypeAdapter(model)) for name, model in _BODIES.items()
    ]
    tops, shared = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    found = {name: _bare(schema) for name, schema in shared.get("$defs", {}).items()}
    names = {}
    for (operation, _), schema in tops.items():
        name = _NAMES[str(operation)]
        found[name] = _bare(schema)
        names[str(operation)] = name
    return {"bodies": names, "schemas": found}


def _bare(schema: Any, within_properties: bool = False) -> Any:
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _bare(value, key == "properties" and not within_properties)
        for key, value in schema.items()
        if within_properties or key not in _PROSE
    }


def text() -> str:
    """The file's contents."""
    return json.dumps(bodies(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE}")
