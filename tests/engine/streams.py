"""Streams of an engine in this process, cut anywhere and continued, and bodies to ask for them."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from serve_app.api.engine_client import EngineRequest, Operation
from serve_app.wire.continuation import Continuation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from serve_app.engine.local_client import LocalEngine


T = TypeVar("T")
OSLO = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 2, "maxItems": 3},
    },
    "required": ["city", "tags"],
    "additionalProperties": False,
}


def chat(text: str, **fields: Any) -> tuple[Operation, dict[str, Any]]:
    return "chat_completions", {"messages": [{"role": "user", "content": text}], **fields}


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


@dataclass
class Heard:
    """What a client was sent of a stream, and the ids that had been told when each chunk came."""

    chunks: list[bytes] = field(default_factory=list)
    told_before: list[int] = field(default_factory=list)
    """By chunk: how many tokens had been told."""
    tokens: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    """By token: the sequence that it is of."""

    def of(self, sequence: int, told: int | None = None) -> list[int]:
        """The tokens of one sequence, among the first `told` of all."""
        pairs = zip(self.tokens[:told], self.sequences, strict=False)
        return [token for token, of in pairs if of == sequence]

    def cuts(self) -> list[int]:
        """The chunks before which a stream may be cut: those with which a new output begins."""
        told = self.told_before
        return [index for index in range(1, len(told)) if told[index] > told[index - 1]]

    def until(self, cut: int) -> tuple[list[bytes], list[list[int]]]:
        """The chunks before `cut`, and the tokens behind them, by sequence."""
        sequences = 1 + max(self.sequences, default=0)
        return self.chunks[:cut], [self.of(one, self.told_before[cut]) for one in range(sequences)]


async def hear(client: LocalEngine, request: EngineRequest) -> Heard:
    """Run a stream to its end."""
    heard = Heard()
    async with client.call(request) as reply:
        assert reply.stream is not None
        assert reply.delivered is not None
        async for chunk in reply.stream:
            for sequence, tokens in reply.delivered.take():
                heard.tokens += tokens
                heard.sequences += [sequence] * len(tokens)
            heard.told_before.append(len(heard.tokens))
            heard.chunks.append(chunk)
    return heard


def asked(operation: Operation, body: dict[str, Any], continuation: Continuation | None = None) -> Any:
    """A request for a stream, or for the rest of it, with a salt that finds no prompt in a cache."""
    document = {"stream": True, "temperature": 0, **body}
    if operation != "generate":
        document.setdefault("stream_options", {"include_usage": True})
    body = json.dumps(document).encode()
    return EngineRequest(
        operation,
        body,
        "r-1",
        time.perf_counter() - 0.5,
        continuation=continuation,
        cache_salt=uuid.uuid4().hex,
    )


async def continued(
    client: LocalEngine, operation: Operation, body: dict[str, Any], before: Heard, cut: int, moves: int = 1
) -> Heard:
    """The rest of a stream that was cut, behind what its client had been sent before."""
    chunks, tokens = before.until(cut)
    created = events(before.chunks)[0].get("created", 0)
    continuation = Continuation(tuple(map(tuple, tokens)), created, ttft_s=0.25, moves=moves)
    rest = await hear(client, asked(operation, body, continuation))
    told = before.told_before[cut]
    return Heard(
        chunks + rest.chunks,
        before.told_before[:cut] + [told + more for more in rest.told_before],
        before.tokens[:told] + rest.tokens,
        before.sequences[:told] + rest.sequences,
    )


async def at_each(cuts: Iterable[int], rest_after: Callable[[int], Awaitable[T]]) -> list[tuple[int, T]]:
    """What follows each cut, all at once: a step of the engine costs as much for one of them."""
    at = sorted(set(cuts))
    return list(zip(at, await asyncio.gather(*map(rest_after, at)), strict=True))


def events(chunks: list[bytes]) -> list[dict[str, Any]]:
    """The documents of a stream's events; its last one is `[DONE]`."""
    *frames, done, rest = b"".join(chunks).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames]


def said(chunks: list[bytes], index: int = 0) -> dict[str, Any]:
    """What a stream says of a choice, whatever frames it took: a late reader gets several tokens in one."""
    whole: dict[str, Any] = {"text": "", "roles": 0, "calls": {}, "finish": [], "logprobs": [], "usage": []}
    documents = events(chunks)
    for name in ("id", "created", "model", "object"):
        whole[name] = {document.get(name) for document in documents}
    for document in documents:
        whole["text"] += document.get("token", "")
        if document.get("usage"):
            whole["usage"].append(document["usage"])
        for choice in document.get("choices", ()):
            if choice["index"] != index:
                continue
            delta = choice.get("delta", {"content": choice.get("text")})
            whole["text"] += delta.get("content") or ""
            whole["roles"] += "role" in delta
            for call in delta.get("tool_calls") or ():
                one = whole["calls"].setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
                one["id"] += call.get("id") or ""
                one["name"] += call["function"].get("name") or ""
                one["arguments"] += call["function"].get("arguments") or ""
            if choice["finish_reason"]:
                whole["finish"].append((choice["finish_reason"], choice.get("stop_reason")))
            whole["logprobs"] += _logprobs(choice.get("logprobs") or {})
    return whole


def _logprobs(logprobs: dict[str, Any]) -> list[tuple[str, float]]:
    if "content" in logprobs:
        return [(one["token"], one["logprob"]) for one in logprobs["content"]]
    return list(zip(logprobs.get("tokens", ()), logprobs.get("token_logprobs", ()), strict=True))


def differences(whole: Heard, again: Heard, index: int = 0) -> dict[str, Any]:
    """What was said otherwise of a choice, but for log-probabilities and a tool call's id, which is drawn."""
    one, other = said(whole.chunks, index), said(again.chunks, index)
    for each in (one, other):
        each["logprobs"] = [token for token, _ in each["logprobs"]]
        for call in each["calls"].values():
            call["id"] = bool(call["id"])
    one["tokens"], other["tokens"] = whole.of(index), again.of(index)
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}
