"""vLLM's own API server and this one, side by side: the same requests, token ids and log-probabilities."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_app.cli.listening import free_port
from serve_app.weights import embedded_model_path
from tests.integration.conftest import CHAT

SUBJECTS = ("the sea", "a fox", "rain", "the moon", "bread", "a harbour", "trains", "winter", "ships", "cats")
QUESTIONS = ("Tell me about {}.", "What is {}?", "Write a story about {}.", "Describe {} as JSON.", "Why {}?")
REQUESTS = [question.format(subject) for subject in SUBJECTS for question in QUESTIONS]


pytestmark = pytest.mark.long


@pytest.fixture(scope="session")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """vLLM's server, its port and log. Asked for before `app`, it starts beside it, which takes 40 s less."""
    port = free_port()
    log: Path = tmp_path_factory.mktemp("vllm") / "log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
    command += ["--model", str(embedded_model_path()), "--served-model-name", CHAT, "--dtype", "bfloat16"]
    command += ["--max-model-len", "2048", "--max-num-seqs", "64", "--enforce-eager"]
    command += ["--kv-cache-memory-bytes", str(128 << 20)]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    # In the engine core's process, as Tideserve has it: a process less to start, and none that spins.
    command += ["--distributed-executor-backend", "uni"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as out:
        server = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT)
    yield server, port, log
    server.kill()


@pytest.fixture(scope="module")
def vllm(starting: tuple[subprocess.Popen[bytes], int, Path]) -> Iterator[httpx.Client]:
    server, port, log = starting
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        for _ in range(480):
            assert server.poll() is None, log.read_text()[-3000:]
            try:
                if client.get("/health").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.25)
        yield client
    server.terminate()
    server.wait(60)


def greedy(client: httpx.Client, question: str, stream: bool) -> tuple[list[int], list[float]]:
    """Return the token ids of an answer and the log-probability of each."""
    body = {
        "model": CHAT,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 32,
        "temperature": 0,
        "logprobs": True,
        "stream": stream,
        "return_token_ids": True,
    }
    with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines()]
    ids: list[int] = []
    logprobs: list[float] = []
    for line in lines:
        if line.startswith("{"):
            for choice in json.loads(line)["choices"]:
                ids += choice.get("token_ids") or []
                logprobs += [each["logprob"] for each in (choice["logprobs"] or {}).get("content") or []]
    return ids, logprobs


def test_fifty_greedy_requests_give_the_same_token_ids_and_log_probabilities(
    starting: object, http: httpx.Client, vllm: httpx.Client
) -> None:
    assert len(REQUESTS) == 50
    with ThreadPoolExecutor(1) as beside:
        for index, question in enumerate(REQUESTS):
            stream = index % 2 == 1
            asked = beside.submit(greedy, vllm, question, stream)
            (ids, logprobs), (their_ids, theirs) = greedy(http, question, stream), asked.result()
            assert ids == their_ids, question
            assert ids
            assert len(logprobs) == len(ids)
            # All 1,503 were equal to the last bit. A logit of 1 to 2 that is rounded otherwise to bfloat16
            # moves by 0.008.
            assert logprobs == pytest.approx(theirs, rel=0, abs=1e-5), question


def said(client: httpx.Client, more: dict) -> dict:
    """What a stream said, whatever frames it took: a reader that lags gets several tokens in one."""
    body = {"model": CHAT, "messages": [{"role": "user", "content": "Say hello in Japanese."}], **more}
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    result: dict = {}
    for line in lines:
        event = httpx.Response(200, content=line.removeprefix("data: ")).json()
        assert event["object"] == "chat.completion.chunk"
        result["usage"] = event.get("usage")
        for choice in event["choices"]:
            one = result.setdefault(choice["index"], {"text": "", "keys": set()})
            one["text"] += choice["delta"].get("content") or ""
            one["role"] = choice["delta"].get("role", one.get("role"))
            one["keys"] |= set(choice)
            one["finish"] = choice["finish_reason"], choice.get("stop_reason")
    return result


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": 24},
        {"max_tokens": 24, "stream_options": {"include_usage": True}},
        {
            "max_tokens": 24,
            "n": 2,
            "temperature": 0.7,
            "seed": 5,
            "stop": ["."],
            "stream_options": {"include_usage": True},
        },
        {"max_tokens": 40, "structured_outputs": {"choice": ["naïve 海 🌊"]}},
    ],
)
def test_a_plain_stream_says_the_same_as_vllms_own(
    vllm: httpx.Client, http: httpx.Client, more: dict
) -> None:
    assert said(http, {"temperature": 0, **more}) == said(vllm, {"temperature": 0, **more})


def responded(client: httpx.Client, more: dict) -> list[dict]:
    """Return the events of a response without their ids and times, and one for each run of deltas."""
    body = {"model": CHAT, "temperature": 0, "max_output_tokens": 48, "stream": True, **more}
    with client.stream("POST", "/v1/responses", json=body) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert not lines[-1].startswith("data: [DONE]")
    events: list[dict] = []
    for name, data in zip(lines[::2], lines[1::2], strict=True):
        event = same_named(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {event['type']}"
        event.pop("sequence_number")
        if events and "delta" in event and events[-1]["type"] == event["type"]:
            events[-1]["delta"] += event["delta"]
        else:
            events.append(event)
    return events


def same_named(document: Any) -> Any:
    """Return a document without ids, times and cached tokens."""
    if isinstance(document, list):
        return [same_named(item) for item in document]
    if not isinstance(document, dict):
        return document
    left_out = ("id", "item_id", "call_id", "created_at", "input_tokens_details")
    return {name: same_named(item) for name, item in document.items() if name not in left_out}


FUNCTION = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.mark.parametrize(
    "more",
    [
        *({"input": question} for question in REQUESTS[:10]),
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}],
            "instructions": "Be brief.",
        },
        {"input": "Hello!", "ignore_eos": True, "store": False, "metadata": {"a": "b"}},
        {"input": "Oslo", "structured_outputs": {"choice": ["naïve 海 🌊"]}},
        {"input": "What is the weather in Oslo?", "tools": [FUNCTION], "tool_choice": "none"},
        {"input": "the sea", "include": ["message.output_text.logprobs"], "max_output_tokens": 3},
    ],
)
def test_a_response_has_the_events_of_vllms_own(vllm: httpx.Client, http: httpx.Client, more: dict) -> None:
    ours, theirs = responded(http, more), responded(vllm, more)
    # vLLM has neither OpenAI's end of a cut answer nor the field `error`.
    theirs[-1]["type"] = f"response.{theirs[-1]['response']['status']}"
    for event in theirs:
        if "response" in event:
            event["response"]["error"] = None

    assert without_logprobs(ours) == without_logprobs(theirs)


def without_logprobs(events: list[dict]) -> list[dict]:
    """Return events without log-probabilities, which a run of deltas does not join."""
    return [{name: item for name, item in event.items() if name != "logprobs"} for event in events]


BAD = [
    {},
    {"input": None},
    {"input": 5},
    {"input": []},
    {"input": [5]},
    {"input": [{}]},
    {"input": [{"role": "nobody", "content": "sea"}]},
    {"input": [{"role": "user", "content": 5}]},
    {"input": [{"role": "user", "content": [{"type": "nonsense"}]}]},
    {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
    {"input": [{"type": "item_reference", "id": "x"}]},
    {"input": [{"type": "reasoning"}]},
    {"input": [{"type": "function_call", "name": "f"}]},
    {"input": [{"type": "function_call_output", "call_id": "c"}]},
    {"input": "word " * 20_000},
    {"input": "sea", "max_output_tokens": 0},
    {"input": "sea", "max_output_tokens": -1},
    {"input": "sea", "max_output_tokens": "many"},
    {"input": "sea", "max_output_tokens": 100_000},
    {"input": "sea", "temperature": -1},
    {"input": "sea", "temperature": "hot"},
    {"input": "sea", "top_p": 2},
    {"input": "sea", "min_p": 5},
    {"input": "sea", "top_logprobs": 50, "include": ["message.output_text.logprobs"]},
    {"input": "sea", "include": ["nonsense"]},
    {"input": "sea", "truncation": "never"},
    {"input": "sea", "metadata": 5},
    {"input": "sea", "reasoning": {"effort": "much"}},
    {"input": "sea", "tools": [{"type": "nonsense"}]},
    {"input": "sea", "tools": [{"type": "function"}]},
    {"input": "sea", "tool_choice": "required"},
    {"input": "sea", "prompt": {"id": "p"}},
    {"input": "sea", "background": True, "store": False},
    {"input": "sea", "cache_salt": ""},
]


@pytest.mark.parametrize("body", BAD, ids=lambda body: json.dumps(body)[:50])
def test_bad_response_is_refused_as_by_vllm(vllm: httpx.Client, http: httpx.Client, body: dict) -> None:
    ours, theirs = (client.post("/v1/responses", json={"model": CHAT, **body}) for client in (http, vllm))

    assert ours.status_code == 400
    assert 400 <= theirs.status_code < 500
    assert ours.json()["error"]["message"]


SEA = [{"role": "user", "content": "Tell me about the sea."}]
TOOL = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def message(client: httpx.Client, more: dict) -> dict:
    """A whole message, without what is drawn, and without the parts of its usage."""
    body = {"model": CHAT, "messages": SEA, "max_tokens": 40, "temperature": 0, **more}
    found = client.post("/v1/messages", json=body).json()
    found.setdefault("stop_sequence", None)  # vLLM leaves it out if it is null
    del found["id"]
    for block in found["content"]:
        block.pop("id", None)
    usage = found.pop("usage")
    return {**found, "output_tokens": usage["output_tokens"]}


def message_events(client: httpx.Client, more: dict) -> tuple[list[str], str, dict]:
    """The names of a stream's events without repetitions, its text or arguments, and its end."""
    body = {"model": CHAT, "messages": SEA, "max_tokens": 40, "temperature": 0, "stream": True, **more}
    with client.stream("POST", "/v1/messages", json=body) as reply:
        lines = list(reply.iter_lines())
    names = [name for name, _ in groupby(line for line in lines if line.startswith("event: "))]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    (end,) = (event["delta"] for event in events if event["type"] == "message_delta")
    return names, "".join(delta.get("text") or delta.get("partial_json") for delta in deltas), end


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"system": [{"type": "text", "text": "Be brief."}]},
        {"stop_sequences": ["water"]},
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}},
    ],
    ids=["plain", "system", "stop", "any tool", "one tool"],
)
def test_a_message_says_the_same_as_vllms_own(vllm: httpx.Client, http: httpx.Client, more: dict) -> None:
    assert message(http, more) == message(vllm, more)
    assert message_events(http, more) == message_events(vllm, more)


def image(**source: Any) -> dict:
    return {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}


MISTAKES: list[dict] = [
    {"max_tokens": 0},
    {"max_tokens": "a"},
    {"max_tokens": 10**12},
    {"max_tokens": 99_999},
    {"max_tokens": None},
    {"messages": None},
    {"messages": []},
    {"messages": "sea"},
    {"messages": [{"role": "bot", "content": "x"}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": []}]},
    {"messages": [{"role": "user", "content": [{"type": "poem"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
    {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [5]}]}]},
    {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": 5}]}]},
    {"messages": [{"role": "user", "content": "a" * 100_000}]},
    image(type="base64", media_type="image/png", data="aGk="),
    image(type="url", url="http://127.0.0.1/x.png"),
    {"model": "other"},
    {"model": 5},
    {"temperature": -1},
    {"temperature": 5},
    {"top_p": 2},
    {"top_k": -5},
    {"stop_sequences": "x"},
    {"stop_sequences": ["a"] * 100},
    {"stop_sequences": [""]},
    {"system": 5},
    {"tools": [{"name": "x"}]},
    {"tools": [TOOL], "tool_choice": {"type": "tool"}},
    {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "nope"}},
    {"tool_choice": {"type": "maybe"}},
    {"thinking": {"type": "enabled", "budget_tokens": 5}},
    {"output_config": {"effort": "huge"}},
    {"output_config": {"format": {"type": "json_schema", "schema": {"type": "poem"}}}},
    {"metadata": "x"},
    {"stream": "maybe"},
    {"cache_salt": ""},
]


def test_a_bad_message_has_the_status_of_vllms_own(vllm: httpx.Client, http: httpx.Client) -> None:
    statuses = []
    for more in MISTAKES:
        body = {"model": CHAT, "messages": SEA, "max_tokens": 5, **more}
        replies = [client.post("/v1/messages", json=body) for client in (http, vllm)]
        assert replies[0].status_code == replies[1].status_code, (more, *(each.text for each in replies))
        assert replies[0].json()["type"] == "error"
        statuses.append(replies[0].status_code)
    assert set(statuses) == {400, 404}


def test_the_differences_from_vllm_are_these(vllm: httpx.Client, http: httpx.Client) -> None:
    """A number that the engine core cannot take, an error within a stream, and a budget that nobody uses."""
    schema = {"format": {"type": "json_schema", "schema": {"$ref": "#/missing"}}}
    budget = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1025}
    found = {}
    for name, more in {
        "top_k": {"top_k": 10**10},
        "schema in a stream": {"output_config": schema, "stream": True},
        "budget without thinking": {**budget, "stop_sequences": ["e"]},
    }.items():
        body = {"model": CHAT, "messages": SEA, "max_tokens": 5, **more}
        found[name] = [client.post("/v1/messages", json=body).status_code for client in (http, vllm)]
    assert found == {
        "top_k": [400, 200],
        "schema in a stream": [400, 200],
        "budget without thinking": [200, 400],
    }
