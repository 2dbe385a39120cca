"""Structured outputs of honest and of hostile clients, on a real engine."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import psutil
import pytest

from tests.engine.grammar.nasties import FINE, TOO_MUCH
from tests.integration.cluster import Running
from tests.integration.conftest import CHAT

NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}


def chat(**fields) -> dict:
    return {"model": CHAT, "messages": [{"role": "user", "content": "How many?"}], "max_tokens": 8, **fields}


def strict(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def test_json_of_a_small_model_ends_in_no_blanks(client: openai.OpenAI) -> None:
    for seed in range(5):
        reply = client.chat.completions.create(
            **chat(response_format=strict(NUMBER), max_tokens=190, temperature=1, seed=seed)
        )
        (choice,) = reply.choices
        assert choice.finish_reason == "stop"
        assert choice.message.content == f'{{"n":{json.loads(choice.message.content)["n"]}}}'


def test_no_structured_output_makes_a_server_error(http: httpx.Client) -> None:
    base = {"model": CHAT, "prompt": "How many?", "max_tokens": 8}

    def status(fields: dict) -> int:
        body = {**base, "structured_outputs": fields}
        return http.post("/v1/completions", json=body, timeout=120).status_code

    table = {**TOO_MUCH, **FINE}
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(table, pool.map(status, table.values()), strict=True))
    assert {name: found[name] for name in TOO_MUCH if found[name] != 400} == {}
    assert {name: found[name] for name in FINE if found[name] != 200} == {}


@pytest.mark.parametrize(
    "response_format",
    [
        strict({"$ref": "#"}),
        {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}},
        {"type": "json_schema"},
        {"type": "structural_tag", "format": {"type": "grammar", "grammar": "root ::= root"}},
        {"type": "structural_tag", "format": {"type": "regex", "pattern": "(([a-z]{1,100}){1,100}){1,10}"}},
        {"type": "structural_tag", "format": 5},
        {"type": "structural_tag", "structures": [{"begin": "<a>"}], "triggers": ["<"]},
        {"type": "nonsense"},
    ],
)
def test_no_response_format_makes_a_server_error(http: httpx.Client, response_format: dict) -> None:
    reply = http.post("/v1/chat/completions", json=chat(response_format=response_format))
    assert reply.status_code == 400, reply.text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "tide"}}])
@pytest.mark.parametrize(
    "schema", [NUMBER, {"$ref": "#"}, {"type": "string", "pattern": "(" * 9}, {"type": 5}]
)
def test_no_tool_makes_a_server_error(http: httpx.Client, choice: object, schema: dict) -> None:
    tool = {"type": "function", "function": {"name": "tide", "strict": True, "parameters": schema}}
    reply = http.post("/v1/chat/completions", json=chat(tools=[tool], tool_choice=choice, max_tokens=40))
    assert reply.status_code == (200 if schema is NUMBER else 400), reply.text


@pytest.mark.long
def test_losing_the_process_that_tries_grammars_fails_no_request(app: Running, http: httpx.Client) -> None:
    lost = app.processes("VLLM::Grammars")  # one a model that generates
    assert lost
    for process in lost:
        process.kill()
    psutil.wait_procs(lost, timeout=30)

    plain = http.post("/v1/chat/completions", json=chat())
    unseen = http.post("/v1/chat/completions", json=chat(structured_outputs={"choice": ["ebb", "neap"]}))

    assert (plain.status_code, unseen.status_code) == (200, 200), unseen.text


HOSTILE = {
    "grammars": ("/v1/chat/completions", chat(structured_outputs=TOO_MUCH["nested repetitions"])),
    "choices": ("/v1/chat/completions", chat(structured_outputs=TOO_MUCH["100,000 choices"])),
    "text to tokenize": ("/tokenize", {"model": CHAT, "prompt": "tide " * 1_600_000}),
    "text to continue": ("/generate", {"model": CHAT, "prompt": "tide " * 1_600_000}),
    "tokens to read": ("/detokenize", {"model": CHAT, "tokens": [5] * 2_600_000}),
    "messages": ("/v1/chat/completions", chat(messages=[{"role": "user", "content": "a"}] * 200_000)),
    "prompts": ("/v1/completions", {"model": CHAT, "prompt": [[1]] * 1_000_000}),
    "unknown fields": ("/generate", {"prompt": "a", **{str(i): i for i in range(400_000)}}),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_body_is_refused_and_stalls_no_stream(app: Running, name: str) -> None:
    path, body = HOSTILE[name]
    data = json.dumps(body).encode()
    assert len(data) <= 8 << 20
    async with httpx.AsyncClient(base_url=app.url, timeout=120) as http:
        asked = {"model": CHAT, "prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        async with http.stream("POST", "/v1/completions", json=asked) as stream:
            chunks = stream.aiter_raw()
            await anext(chunks)
            headers = {"Content-Type": "application/json"}
            hostile = asyncio.create_task(http.post(path, content=data, headers=headers))
            gaps, last = [], time.perf_counter()
            async for _ in chunks:
                gaps.append((now := time.perf_counter()) - last)
                last = now
                if hostile.done():
                    break
        reply = await hostile
    assert reply.status_code in (400, 422), reply.text[:300]
    print(f"\n{name}: longest gap {max(gaps, default=0):.3f} s of {len(gaps)}; {reply.text[:140]}")
