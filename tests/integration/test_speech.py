"""Speech through the whole server: a tiny Whisper that starts from zero, and the official client."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.engine.test_speech_operations import TONE
from tests.engine.tiny_models import speech_model
from tests.integration.cluster import Running, application, engine_settings

MODEL = "whisper"
CHOICES = {"model": MODEL, "language": "en"}
BOUND = {"max_completion_tokens": 12}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = engine_settings(
        MODEL,
        task="transcribe",
        model=speech_model(tmp_path_factory.mktemp("speech")),
        dtype="float32",
        max_model_len=64,
        kv_cache_memory_bytes=32 << 20,
    )
    running = Running(application(settings, knobs={MODEL: {"min_replicas": 0, "keep_alive_interval_s": 0.5}}))
    with running.serving():
        yield running


def test_stream_of_speech_waits_for_a_replica_and_the_client_reads_the_same(server: Running) -> None:
    streamed = httpx.post(
        f"{server.url}/v1/audio/transcriptions",
        data={**CHOICES, **BOUND, "stream": "true", "stream_include_usage": "true"},
        files={"file": ("sea.wav", TONE)},
        timeout=120,
    )
    assert streamed.status_code == 200, streamed.text
    assert streamed.text.startswith(f": waiting for a replica of {MODEL}")
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert '"latency":{"cold_wait_ms"' in streamed.text

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        file = ("sea.wav", TONE)
        whole = client.audio.transcriptions.create(file=file, extra_body=BOUND, **CHOICES)
        stream = client.audio.transcriptions.create(file=file, stream=True, extra_body=BOUND, **CHOICES)
        text = "".join(event.choices[0]["delta"]["content"] for event in stream)
        with pytest.raises(openai.BadRequestError, match="Invalid or unsupported audio file"):
            client.audio.transcriptions.create(file=("sea.txt", b"no audio"), **CHOICES)
        with pytest.raises(openai.BadRequestError, match="does not support chat completions"):
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "sea"}])

    assert whole.text == text != ""


def test_request_log_has_transcriptions(server: Running) -> None:
    deadline = time.monotonic() + 30
    while not (lines := logged(server)):
        assert time.monotonic() < deadline
        time.sleep(0.1)

    assert {(line["operation"], line["model"]) for line in lines} == {("transcriptions", MODEL)}
    # Four tokens come before the text: the beginning, the language, the task, and no timestamps.
    assert [(line["input_tokens"], line["output_tokens"]) for line in lines] == [(4, 12)] * 3


def logged(server: Running) -> list[dict[str, Any]]:
    """Return the lines of the request log, once all three requests are in it."""
    folder = server.folder / "ray" / "session_latest" / "logs" / "serve"
    files = folder.glob(f"requests.tideserve.Engine-{MODEL}.*.jsonl")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return lines if len(lines) == 3 else []
