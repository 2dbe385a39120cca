"""Transcriptions and translations: beside vLLM's own API on the same engine, and by the official client."""

from __future__ import annotations

import asyncio
import io
import json
import re
import wave
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError
from vllm.entrypoints.launchers.app import build_app

from serve_app.api.endpoints import ApiModel
from serve_app.api.engine_client import Operation
from serve_app.api.errors import ApiError
from serve_app.api.http_api import create_app
from serve_app.api.upload import speech_body
from serve_app.engine.chat_operations import Serving
from serve_app.engine.local_client import LocalEngine
from serve_app.settings.tree import HttpSettings
from tests.api.server import StubObserver
from tests.engine.calls import InProcess, engine_call
from tests.engine.stub_engine_core import configured, real_serving
from tests.engine.tiny_models import speech_model
from tests.speech_files import TONE, tone


def samples(data: bytes, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, rate, 0, "NONE", ""))
        out.writeframes(data)
    return file.getvalue()


CHOICES = {"model": "tide", "language": "en", "max_completion_tokens": "12"}


@dataclass(frozen=True, slots=True)
class Both:
    """A speech model behind vLLM's own API, and behind ours, on the same engine."""

    local: LocalEngine
    ours: httpx.AsyncClient
    vllm: httpx.AsyncClient


@pytest.fixture(scope="module")
async def speech(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Both]:
    settings, namespace, config = configured(
        task="transcribe",
        model=speech_model(tmp_path_factory.mktemp("speech")),
        dtype="float32",
        max_model_len=64,
        kv_cache_memory_bytes=32 << 20,
    )
    async with real_serving(namespace, config) as serving:
        theirs = build_app(namespace, await serving.engine.get_supported_tasks(), config.model_config)
        theirs.state = serving.state
        local = LocalEngine(serving, settings, lambda _: None)
        app = create_app([ApiModel("tide", 0, InProcess(local))], StubObserver(), HttpSettings())
        both = [
            httpx.AsyncClient(
                transport=httpx.ASGITransport(each, raise_app_exceptions=False), base_url="http://tide"
            )
            for each in (app, theirs)
        ]
        async with both[0], both[1]:
            yield Both(local, *both)


def content(reply: httpx.Response) -> Any:
    """Return an answer's document. Of a stream, whose steps vary: its text, and its events without text."""
    if reply.headers["content-type"] == "application/json":
        return reply.json()
    text, rest = "", set()
    for frame in reply.text.split("\n\n"):
        bare = re.sub(r'"id":"[^"]*",|"created":\d+,|,"latency":\{[^}]*\}', "", frame)
        delta = re.search(r'"content":("(?:[^"\\]|\\.)*")', bare)
        text += json.loads(delta[1]) if delta else ""
        rest.add(bare.replace(delta[1], "") if delta else bare)
    return text, rest


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        (TONE, {}),
        (tone(880), {"prompt": "The sea", "temperature": "0.7", "seed": "3"}),
        (tone(440, rate=44_100, kind="FLAC", channels=2), {}),
        (tone(440, rate=48_000, kind="OGG"), {"response_format": "text"}),
        (tone(440, rate=24_000, kind="MP3"), {"language": ""}),
        (tone(300, seconds=5), {}),
        (tone(300, seconds=5), {"response_format": "verbose_json", "timestamp_granularities[]": ["segment"]}),
        (tone(300, seconds=5), {"stream": "true", "stream_include_usage": "true"}),
        (TONE, {"stream": "True"}),
        (TONE, {"use_beam_search": "true", "n": "2"}),
        (samples(b"\0\0" * 9), {}),
        (samples(b"", rate=8_000), {}),
    ],
)
@pytest.mark.parametrize("operation", ["transcriptions", "translations"])
async def test_answer_is_that_of_vllm(
    speech: Both, operation: Operation, file: bytes, fields: dict[str, Any]
) -> None:
    given = {name: value for name, value in (CHOICES | fields).items() if value}
    if operation == "translations":  # whose schema lacks these fields
        given = {name: value for name, value in given.items() if not name.startswith("timestamp")}
    ours, theirs = [
        await http.post(f"/v1/audio/{operation}", data=given, files={"file": ("a.bin", file)})
        for http in (speech.ours, speech.vllm)
    ]

    assert (ours.status_code, theirs.status_code) == (200, 200), (ours.text, theirs.text)
    assert content(ours) == content(theirs)
    assert ours.headers["content-type"].partition(";")[0] == theirs.headers["content-type"].partition(";")[0]


@pytest.mark.parametrize(
    ("fields", "file", "param", "reason"),
    [
        ({}, b"no audio at all", "file", "Invalid or unsupported audio"),
        ({}, TONE[:30], "file", "Invalid or unsupported audio"),
        ({}, tone(1, seconds=601, rate=1000), "file", "600s"),
        ({"language": "xx"}, TONE, "language", "'xx'"),
        ({"response_format": "srt"}, TONE, "response_format", "'json' or 'text' or 'verbose_json'"),
        ({"response_format": "vtt"}, TONE, "response_format", "'json'"),
        ({"response_format": "diarized_json"}, TONE, "response_format", "'json'"),
        ({"response_format": "xml"}, TONE, "response_format", "'xml'"),
        ({"response_format": "verbose_json", "stream": "true"}, TONE, "response_format", "stream = true"),
        ({"stream": "perhaps"}, TONE, "stream", "perhaps"),
        ({"stream": "true", "use_beam_search": "true"}, TONE, "use_beam_search", "streams"),
        ({"stream_include_usage": "true"}, TONE, "stream_include_usage", "stream"),
        ({"temperature": "hot"}, TONE, "temperature", "hot"),
        ({"temperature": "-1"}, TONE, "temperature", "-1"),
        ({"temperature": "nan"}, TONE, "temperature", "finite"),
        ({"top_p": "7"}, TONE, "top_p", "7"),
        ({"seed": "9" * 30}, TONE, "seed", "9223372036854775807"),
        ({"n": "0"}, TONE, "n", "at least 1"),
        ({"n": "1000"}, TONE, "n", "at most 64"),
        ({"max_completion_tokens": "0"}, TONE, "max_completion_tokens", "0"),
        ({"max_completion_tokens": "many"}, TONE, "max_completion_tokens", "many"),
        ({"timestamp_granularities[]": "hour"}, TONE, "timestamp_granularities[][0]", "hour"),
        ({"vllm_xargs": "{"}, TONE, "vllm_xargs", "JSON"),
        ({"prompt": "sea " * 900}, TONE, "prompt", ""),
    ],
)
async def test_wrong_field_or_file_is_named(
    speech: Both, fields: dict[str, str], file: bytes, param: str, reason: str
) -> None:
    reply = await speech.ours.post(
        "/v1/audio/transcriptions", data=CHOICES | fields, files={"file": ("a.wav", file)}
    )

    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param, error
    assert re.search(re.escape(reason), error["message"])
    # The engine goes on.
    again = await speech.ours.post("/v1/audio/transcriptions", data=CHOICES, files={"file": ("a.wav", TONE)})
    assert again.status_code == 200


async def test_official_client_reads_texts_segments_and_streams(speech: Both) -> None:
    client = AsyncOpenAI(api_key="-", base_url="http://tide/v1", http_client=speech.ours, max_retries=0)
    file = ("sea.wav", TONE)
    choices: Any = {"model": "tide", "language": "en", "extra_body": {"max_completion_tokens": 12}}

    whole = await client.audio.transcriptions.create(file=file, **choices)
    verbose = await client.audio.transcriptions.create(
        file=file, response_format="verbose_json", timestamp_granularities=["segment"], **choices
    )
    stream = await client.audio.transcriptions.create(file=file, stream=True, **choices)
    deltas = [event.choices[0]["delta"]["content"] async for event in stream]

    assert whole.text
    assert whole.usage is not None
    assert whole.usage.to_dict() == {"type": "duration", "seconds": 1}
    assert (verbose.language, verbose.duration) == ("en", 1.0)
    assert "".join(deltas) == whole.text
    with pytest.raises(BadRequestError, match="file: is empty"):
        await client.audio.transcriptions.create(file=("empty.wav", b""), **choices)


async def test_answer_and_stream_report_tokens_of_all_chunks(speech: Both) -> None:
    body = speech_body({"language": "en", "max_completion_tokens": 4}, tone(300, seconds=5))
    request = engine_call("transcriptions", body, "r-1")

    async with speech.local.call(request) as reply:
        assert json.loads(reply.body)["usage"]["seconds"] == 5

    assert request.counts.output is not None
    assert request.counts.output >= 3 * 4
    assert request.counts.input == request.counts.output  # four tokens before each chunk's text
    assert request.message.body == b""


@pytest.mark.parametrize(
    ("fields", "sequences"), [({"language": "en"}, 3), ({}, 1)], ids=["three chunks", "detecting a language"]
)
async def test_cancelled_client_ends_no_call_with_the_same_id(
    speech: Both, fields: dict[str, str], sequences: int
) -> None:
    states = speech.local._engine.output_processor.request_states

    async def text(name: str) -> Any:
        body = speech_body({**fields, "max_completion_tokens": 40, "temperature": 0}, tone(300, seconds=5))
        async with speech.local.call(engine_call("transcriptions", body, name)) as reply:
            return json.loads(reply.body)["text"]

    expected = await text("alone")
    leaves, stays = (asyncio.create_task(text("the same")) for _ in range(2))
    while len(states) < 2 * sequences:
        await asyncio.sleep(0)
    leaves.cancel()

    assert await stays == expected != ""
    assert leaves.cancelled()
    assert not states


@pytest.mark.parametrize("operation", ["transcriptions", "translations"])
async def test_model_of_text_refuses_speech(serving: Serving, operation: Operation) -> None:
    from serve_app.engine.speech_operations import transcribe

    with pytest.raises(ApiError, match="does not support") as caught:
        await transcribe(serving, engine_call(operation, speech_body({}, TONE), "r-1"))

    assert (caught.value.status, caught.value.code) == (400, "unsupported_feature")
