"""Write the request schemas down from the installed vLLM: `python -m tools.request_schemas`."""

import json
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest
from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest

from serve_app.api import schemas

FILE = Path(schemas.__file__).with_name("bodies.json")
_BODIES: dict[str, Any] = {
    "chat_completions": ChatCompletionRequest,
    "completions": CompletionRequest,
    "messages": AnthropicMessagesRequest,
    "count_tokens": AnthropicCountTokensRequest,
    "embeddings": EmbeddingRequest,
    "score": ScoreRequest,
    "rerank": RerankRequest,
    "pooling": PoolingRequest,
    "classify": ClassificationRequest,
    "transcriptions": TranscriptionRequest,
    "translations": TranslationRequest,
    "tokenize": TokenizeRequest,
    "detokenize": DetokenizeRequest,
}
_NAMES = {
    "chat_completions": "ChatCompletionBody",
    "completions": "CompletionBody",
    "responses": "ResponseBody",
    "messages": "MessageBody",
    "count_tokens": "CountTokensBody",
    "embeddings": "EmbeddingBody",
    "score": "ScoreBody",
    "rerank": "RerankBody",
    "pooling": "PoolingBody",
    "classify": "ClassificationBody",
    "transcriptions": "TranscriptionBody",
    "translations": "TranslationBody",
    "tokenize": "TokenizeBody",
    "detokenize": "DetokenizeBody",
}
_RESPONSE_UNIONS = {
    # The members of OpenAI's unions that vLLM knows, of about 60 and 16.
    "input": (
        "EasyInputMessageParam",
        "ResponseOutputMessageParam",
        "ResponseReasoningItemParam",
        "ResponseFunctionToolCallParam",
        "FunctionCallOutput",
        "ResponseCustomToolCallParam",
        "ResponseCustomToolCallOutputParam",
    ),
    "tools": ("FunctionTool", "CustomTool", "NamespaceTool"),
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
    names["responses"] = _NAMES["responses"]
    found |= _response_schemas(_NAMES["responses"])
    return {"bodies": names, "schemas": found}


def _response_schemas(name: str) -> dict[str, Any]:
    """Return the schema of the body of Responses, and those that it refers to, under names of their own."""
    prefix = f"{name}."
    schema = TypeAdapter(ResponsesRequest).json_schema(ref_template=f"#/components/schemas/{prefix}{{model}}")
    every = schema.pop("$defs")
    for field, members in _RESPONSE_UNIONS.items():
        described = schema["properties"][field]
        items = next(each["items"] for each in (described, *described.get("anyOf", ())) if "items" in each)
        items["anyOf"] = [{"$ref": f"#/components/schemas/{prefix}{member}"} for member in members]
    reference_to = re.compile(rf'"#/components/schemas/{re.escape(prefix)}([^"]+)"')
    found, wanted = {name: _bare(schema)}, [schema]
    while wanted:
        for reference in reference_to.findall(json.dumps(wanted.pop())):
            if prefix + reference not in found:
                found[prefix + reference] = _bare(every[reference])
                wanted.append(every[reference])
    return found


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
    """The file's contents: a line for each schema."""
    document = bodies()
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(document['schemas'][name], sort_keys=True, ensure_ascii=False)}"
        for name in sorted(document["schemas"])
    )
    return f'{{"bodies": {json.dumps(document["bodies"], sort_keys=True)},\n"schemas": {{\n{lines}\n}}}}\n'


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE}")
