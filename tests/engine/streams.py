"""Streams of an engine in this process, cut anywhere and continued, and bodies to ask for them."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from serve_app.api.engine_client import Operation
from serve_app.engine.engine_call import EngineCall
from serve_app.ingress.attempt import Delivered
from serve_app.wire.data_plane import Continuation, Piece
from tests.engine.calls import engine_call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

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
    """What a client was sent of a stream, and the outputs that had been told when each chunk came."""

    chunks: list[bytes] = field(default_factory=list)
    outputs: list[tuple[int, Sequence[int]]] = field(default_factory=list)
    """vLLM's outputs, in order: the sequence and its tokens."""
    outputs_before: list[int] = field(default_factory=list)
    """By chunk: how many outputs had been told."""

    @property
    def tokens(self) -> list[int]:
        return [token for _, tokens in self.outputs for token in tokens]

    @property
    def told_before(self) -> list[int]:
        """By chunk: how many tokens had been told."""
        told = [0, *accumulate(len(tokens) for _, tokens in self.outputs)]
        return [told[count] for count in self.outputs_before]

    def of(self, sequence: int) -> list[int]:
        """The tokens of one sequence."""
        return [token for of, tokens in self.outputs if of == sequence for token in tokens]

    def cuts(self) -> list[int]:
        """The chunks before which a stream may be cut: those with which a new output begins."""
        told = self.told_before
        return [index for index in range(1, len(told)) if told[index] > told[index - 1]]

    def continuation(self, cut: int, moves: int = 1) -> Continuation:
        """The record with which another engine continues the stream, as the ingress keeps it."""
        delivered = Delivered("", None)
        told = [(sequence, list(tokens)) for sequence, tokens in self.outputs[: self.outputs_before[cut]]]
        delivered.note(Piece(0, b"".join(self.chunks[:cut]), told))
        continuation = delivered.continuation(0.25, moves)
        assert continuation is not None
        return continuation

    def then(self, cut: int, rest: Heard) -> Heard:
        """What a client was sent that got only what is before `cut`, and then `rest`."""
        told = self.outputs_before[cut]
        return Heard(
            self.chunks[:cut] + rest.chunks,
            self.outputs[:told] + rest.outputs,
            self.outputs_before[:cut] + [told + more for more in rest.outputs_before],
        )


async def hear(client: LocalEngine, request: EngineCall) -> Heard:
    """Run a stream to its end."""
    heard = Heard()
    async with client.call(request) as reply:
        assert reply.stream is not None
        assert reply.delivered is not None
        async for chunk in reply.stream:
            heard.outputs += reply.delivered.take()
            heard.outputs_before.append(len(heard.outputs))
            heard.chunks.append(chunk)
    return heard


def asked(operation: Operation, body: dict[str, Any], continuation: Continuation | None = None) -> Any:
    """A request for a stream, or for the rest of it, with a salt that finds no prompt in a cache."""
    document = {"stream": True, "temperature": 0, **body}
    if operation in ("chat_completions", "completions"):
        document.setdefault("stream_options", {"include_usage": True})
    return engine_call(
        operation,
        json.dumps(document).encode(),
        "r-1",
        time.perf_counter() - 0.5,
        continuation=continuation,
        cache_salt=uuid.uuid4().hex,
    )


async def continued(
    client: LocalEngine, operation: Operation, body: dict[str, Any], before: Heard, cut: int, moves: int = 1
) -> Heard:
    """The rest of a stream that was cut, behind what its client had been sent before."""
    rest = await hear(client, asked(operation, body, before.continuation(cut, moves)))
    return before.then(cut, rest)


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
