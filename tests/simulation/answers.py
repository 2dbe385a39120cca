"""The answers that clients get, in the words of all APIs, and the answers that they should get."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.sampling_params import SamplingParams

from serve_app.engine.generate_operation import TokenTexts
from tests.simulation.client import CALLS, CALLS_BEGIN, STOP, Asked

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.core import Oracle

_DONE = ("", "[DONE]")
_LAST = {"messages": ("message_stop",), "responses": ("response.completed", "response.incomplete")}
_ALIVE = ("ping", "keepalive")
"""Events of a client's wait, which are no part of an answer."""
_CUT = {"length", "max_tokens", "max_output_tokens", "incomplete"}


class BrokenAnswerError(Exception):
    """An answer is not what its API allows."""


@dataclass
class Got:
    """One answer, by sequence."""

    texts: dict[int, str] = field(default_factory=dict)
    calls: dict[int, list[tuple[str, Any]]] = field(default_factory=dict)
    """The names and the arguments of the called tools."""
    told: dict[int, list[str]] = field(default_factory=dict)
    """The same arguments as text, as a stream delivers them."""
    cut: dict[int, bool] = field(default_factory=dict)
    """Whether it ended because of its bound of tokens. Only `/generate` does not tell in a stream."""
    usage: tuple[int, int] | None = None
    """The tokens of the prompt and of the answer."""
    error: str = ""
    """The message of the error that ended it."""


def expected(oracle: Oracle, asked: Asked, model: str) -> Got:
    """Return the answer that one engine of a model gives alone."""
    got, tokens, prompt = Got(), 0, oracle.prompts[asked.name]
    for sequence in range(asked.body.get("n", 1)):
        weights = model + (f"+{asked.adapter}" if asked.adapter else "")
        ids = oracle.whole(asked.name, weights, sequence, asked.most)
        ended = ids[-1] == oracle.tokenizer.eos_token_id
        texts = TokenTexts(oracle.tokenizer, SamplingParams(), prompt, "whole").split(ids, stopped=ended)
        text = "".join(texts)
        if STOP in text and ("stop" in asked.body or "stop_sequences" in asked.body):
            count = next(each for each in range(len(ids)) if STOP in "".join(texts[: each + 1]))
            ids, text, ended = ids[: count + 1], text.partition(STOP)[0], True
        if asked.calls:
            text, got.calls[sequence] = text.partition(CALLS_BEGIN[oracle.parser])[0], CALLS[: asked.calls]
            # `hermes` passes on what the model writes, and `olmo3` makes JSON of it.
            ascii_ = oracle.parser == "hermes"
            got.told[sequence] = [json.dumps(each, ensure_ascii=ascii_) for _, each in CALLS[: asked.calls]]
        got.texts[sequence], got.cut[sequence] = text.strip(), not ended
        tokens += len(ids)
    got.usage = len(prompt), tokens
    return got


def read_answer(client: Client) -> Got:
    """Read an answer. Raises BrokenAnswerError, for whatever its API does not allow."""
    if client.status == 200 and client.asked.body.get("stream"):
        return _read_stream(client.asked.api, client.body.decode())
    document = json.loads(client.body)
    if document.get("error"):
        if client.status < 400 or (client.asked.api == "messages") != ("type" in document):
            raise BrokenAnswerError(f"an error of another shape, with status {client.status}: {document}")
        return Got(error=document["error"]["message"])
    got = Got()
    if "choices" in document:
        for choice in document["choices"]:
            _add_choice(got, choice, choice.get("message", choice))
    elif client.asked.api == "messages":
        for block in document["content"]:
            _add_block(got, block)
        got.cut[0] = document["stop_reason"] in _CUT
    elif client.asked.api == "responses":
        _add_response(got, document)
    else:
        got.texts[0], got.cut[0] = document["text"], document["finish_reason"] in _CUT
        got.usage = document["prompt_tokens"], len(document["token_ids"])
    got.usage = got.usage or _usage(document["usage"])
    return _closed(got)


def _usage(usage: dict[str, Any]) -> tuple[int, int]:
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["completion_tokens"]
    cached = ("cache_read_input_tokens", "cache_creation_input_tokens")  # Anthropic counts them apart
    return usage["input_tokens"] + sum(usage.get(name) or 0 for name in cached), usage["output_tokens"]


def _add_choice(got: Got, choice: dict[str, Any], part: dict[str, Any]) -> None:
    """Add a choice of an answer, or of an event."""
    index = choice["index"]
    if index in got.cut:
        raise BrokenAnswerError(f"a choice goes on after its end: {choice}")
    if index in got.texts and "role" in part:
        raise BrokenAnswerError(f"a choice begins twice: {choice}")
    got.texts[index] = got.texts.get(index, "") + (part.get("content") or part.get("text") or "")
    calls = got.calls.setdefault(index, [])
    for number, call in enumerate(part.get("tool_calls") or ()):
        name, at = call["function"].get("name"), call.get("index", number)
        if (at == len(calls)) != bool(name):
            raise BrokenAnswerError(f"call {at} begins twice, or without a name: {call}")
        if name:
            calls.append((name, ""))
        calls[at] = (calls[at][0], calls[at][1] + (call["function"].get("arguments") or ""))
    if choice["finish_reason"]:
        got.cut[index] = choice["finish_reason"] in _CUT


def _add_block(got: Got, block: dict[str, Any]) -> None:
    """Add a content block of a message, or an item of a response."""
    if block["type"] in ("tool_use", "function_call"):
        arguments = block["arguments"] if "arguments" in block else json.dumps(block["input"])
        got.calls.setdefault(0, []).append((block["name"], arguments))
    else:
        parts = block.get("content", [block])
        got.texts[0] = got.texts.get(0, "") + "".join(part["text"] for part in parts)


def _add_response(got: Got, response: dict[str, Any]) -> None:
    for item in response["output"]:
        _add_block(got, item)
    got.cut[0], got.usage = response["status"] in _CUT, _usage(response["usage"])


def _closed(got: Got) -> Got:
    """Return an answer that is whole."""
    got.texts = {index: text.strip() for index, text in got.texts.items()} or {0: ""}
    got.told = {index: [text for _, text in calls] for index, calls in got.calls.items() if calls}
    calls = {index: each for index, each in got.calls.items() if each}
    try:
        got.calls = {index: [(name, json.loads(text)) for name, text in calls[index]] for index in calls}
    except ValueError as error:
        raise BrokenAnswerError(f"arguments of a tool are not JSON: {calls}") from error
    return got


def _read_stream(api: str, body: str) -> Got:
    frames = [frame for frame in body.split("\n\n") if not frame.startswith(":")]
    if frames.pop():
        raise BrokenAnswerError(f"half a frame at the end: {body[-100:]!r}")
    events = []
    for frame in frames:
        name, _, data = frame.rpartition("data: ")
        events.append((name.removeprefix("event: ").strip(), data))
    ends = [number for number, event in enumerate(events) if _is_end(api, event)]
    failed = [number for number, event in enumerate(events) if event[0] == "error"]
    if failed:
        behind = [name or data for name, data in events[failed[0] + 1 :]]
        wanted = {"messages": [], "responses": ["response.failed"]}.get(api, [_DONE[1]])
        if behind != wanted or len(ends) != len(wanted):
            raise BrokenAnswerError(f"an error within, or not one end: {events[-4:]}")
        return Got(error=json.loads(events[failed[0]][1])["error"]["message"])
    if ends != [len(events) - 1]:
        raise BrokenAnswerError(f"not one end: {events[-3:]}")
    documents = [json.loads(data) for name, data in events if name not in _ALIVE and data != _DONE[1]]
    return {"messages": _message, "responses": _response}.get(api, _chunks)(documents)


def _is_end(api: str, event: tuple[str, str]) -> bool:
    return event[0] in (*_LAST[api], "response.failed") if api in _LAST else event == _DONE


def _chunks(documents: list[dict[str, Any]]) -> Got:
    """Read the events of a chat, a text completion or `/generate`."""
    got = Got()
    for document in documents:
        if "token" in document:
            got.texts[0] = got.texts.get(0, "") + document["token"]
            continue
        if document.get("usage"):
            if got.usage:
                raise BrokenAnswerError(f"usage comes twice: {document}")
            got.usage = _usage(document["usage"])
        for choice in document["choices"]:
            _add_choice(got, choice, choice.get("delta", choice))
    if "choices" in documents[0] and sorted(got.cut) != sorted(got.texts):
        raise BrokenAnswerError(f"ends of {sorted(got.cut)}, and choices {sorted(got.texts)}")
    return _closed(got)


def _message(documents: list[dict[str, Any]]) -> Got:
    """Read the events of Anthropic's Messages."""
    got, kinds = _blocks(documents), [event["type"] for event in documents]
    ends = [event for event in documents if event["type"] == "message_delta"]
    if kinds.count("message_start") != 1 or kinds[0] != "message_start" or len(ends) != 1:
        raise BrokenAnswerError(f"not one begin, or not one end: {kinds}")
    got.cut[0], got.usage = ends[0]["delta"]["stop_reason"] in _CUT, _usage(ends[0]["usage"])
    return _closed(got)


def _response(documents: list[dict[str, Any]]) -> Got:
    """Read the events of OpenAI's Responses. The last one has all that the others told."""
    numbers = [event["sequence_number"] for event in documents]
    if numbers[(first := numbers.count(0)) :] != sorted(set(numbers[first:])):  # 0: events of a wait
        raise BrokenAnswerError(f"sequence numbers {numbers}")
    got, whole = _blocks(documents), Got()
    _add_response(whole, documents[-1]["response"])
    got.cut, got.usage = whole.cut, whole.usage
    if (got := _closed(got)) != _closed(whole):
        raise BrokenAnswerError(f"the events told {got}, and the last one {whole}")
    return got


def _blocks(documents: list[dict[str, Any]]) -> Got:
    """Read the content blocks of a message or the items of a response, which begin and end one by one."""
    blocks, ended = list[dict[str, Any]](), 0
    for event in documents:
        kind, index = event["type"], event.get("index", event.get("output_index"))
        if kind in ("content_block_start", "response.output_item.added"):
            begun = event.get("content_block") or event["item"]
            blocks.append({"type": begun["type"], "name": begun.get("name"), "text": "", "arguments": ""})
        if index is not None and (index != len(blocks) - 1 or ended != index):
            raise BrokenAnswerError(f"a block out of order: {event}")
        if index is not None and kind.endswith("delta"):
            delta = event["delta"]
            if isinstance(delta, str):
                delta = {"partial_json" if "arguments" in kind else "text": delta}
            blocks[-1]["text"] += delta.get("text", "")
            blocks[-1]["arguments"] += delta.get("partial_json", "")
        ended += kind in ("content_block_stop", "response.output_item.done")
    if ended != len(blocks):
        raise BrokenAnswerError(f"{len(blocks)} blocks begin, and {ended} end")
    got = Got()
    for block in blocks:
        _add_block(got, block)
    return got
