"""The operations of pooling models on vLLM's handlers: embeddings, scores, ranks, classes and `/pooling`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.responses import Response
from vllm.config import ModelConfig
from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from serve_app.api.body import QUERIES
from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import NOT_JSON, invalid_field, invalid_value, not_an_object
from serve_app.engine.api_errors import from_response
from serve_app.engine.chat_operations import Serving, raw_request, text_of
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.media import INPUTS, reader_of
from serve_app.engine.number_bounds import check_characters, check_token_ids
from serve_app.engine.request_body import RequestModel, name_field_in_errors

_MAX_INPUTS = 2048
"""OpenAI's bound on the number of texts in one embeddings request."""
_MAX_NUMBERS = 1 << 25
"""The most numbers in an answer with a vector for each token: 0.6 GB of JSON."""
_JSON_FORMATS = ("float", "base64")
_read_inputs = reader_of(*INPUTS)
_FOR_EACH_DOCUMENT = (*QUERIES, "chat_template_kwargs")
"""Fields whose text vLLM tokenizes once for each document."""


EMBEDDING = RequestModel(EmbeddingRequest)
TASKS: dict[str, tuple[str, str, RequestModel]] = {
    "embeddings": ("serving_embedding", "embeddings", EMBEDDING),
    "score": ("serving_scores", "scores", RequestModel(ScoreRequest)),
    "rerank": ("serving_scores", "reranking", RequestModel(RerankRequest)),
    "pooling": ("serving_pooling", "pooling", RequestModel(PoolingRequest)),
    "classify": ("serving_classification", "classification", RequestModel(ClassificationRequest)),
}
"""The operations of `pool`: vLLM's name of the handler, the task for people, and the body. A model supports
the tasks for which vLLM has set a handler."""


async def pool(serving: Serving, call: EngineCall) -> EngineReply:
    """Run one of `TASKS`.

    Raises:
        ApiError: 400 for a body out of bounds, or if the model does not support the task.
    """
    name, feature, body_model = TASKS[call.message.operation]
    handler = serving.handler(name, feature)
    # Before parsing, because pydantic takes 18 µs per text to try every type of an input.
    try:
        inputs = _read_inputs(call.message.body)
    except NOT_JSON as error:
        raise not_an_object(error) from None
    for name, value in inputs.items():
        if isinstance(value, list) and len(value) > _MAX_INPUTS and not isinstance(value[0], int):
            raise invalid_field(name, f"{len(value)} inputs; at most {_MAX_INPUTS} are accepted")
    request = serving.parse(call, body_model)
    check_token_ids("input", getattr(request, "input", None), serving.vocabulary)
    _check_texts(serving, request, inputs)
    encoding = getattr(request, "encoding_format", "float")
    if encoding not in _JSON_FORMATS:
        raise invalid_value("encoding_format", encoding, "must be 'float' or 'base64': an answer is JSON")
    if getattr(handler, "pooling_task", "").startswith("token_"):
        _check_answer(serving.engine.model_config, request)
    with name_field_in_errors(request):
        response: Response = await handler(request, raw_request(call))
        body = bytes(response.body)
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            raise from_response(ErrorResponse.model_validate_json(body))
    return EngineReply(200, body)


def _check_texts(serving: Serving, request: Any, inputs: dict[str, Any]) -> None:
    """Refuse media for a text model, and texts that cannot fit the context, before tokenization."""
    config, given = serving.engine.model_config, vars(request)
    truncates = given["truncate_prompt_tokens"] is not None or given.get("max_tokens_per_doc")
    # vLLM may embed a longer text in several parts.
    limit = max(config.max_model_len, getattr(config.pooler_config, "max_embed_len", None) or 0)
    texts = {name: value for name, value in inputs.items() if name in given}
    if (options := given.get("chat_template_kwargs")) is not None:  # `instruction` is among them
        texts["chat_template_kwargs"] = str(options)
    for name, value in texts.items():
        items = value if isinstance(value, list) else [value]
        if name != "input" and not config.is_multimodal_model:
            for index, item in enumerate(items):
                if isinstance(item, dict):
                    path = f"{name}[{index}]" if items is value else name
                    raise invalid_field(path, "this model takes text", "unsupported_feature")
        if name in _FOR_EACH_DOCUMENT or not truncates:
            plain = [text_of([item]) if isinstance(item, dict) else item for item in items]
            check_characters(name, plain, limit, serving.engine.get_tokenizer())


def _check_answer(config: ModelConfig, request: Any) -> None:
    """Refuse inputs whose answer, with a vector for each token, might not fit the memory."""
    value: Any = getattr(request, "input", None)
    limit = config.max_model_len
    inputs = value if isinstance(value, list) and not isinstance(next(iter(value), 0), int) else [value]
    tokens = 0
    for item in inputs:
        whole = item is None or getattr(request, "padding", None) == "max_length"
        given = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item
        tokens += limit if whole else min(len(given), limit)
    numbers = tokens * config.get_hidden_size()
    if numbers > _MAX_NUMBERS:
        why = f"up to {tokens} tokens give {numbers} numbers; at most {_MAX_NUMBERS} are answered"
        raise invalid_field("input", why)
