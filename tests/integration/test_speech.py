"""Speech through the whole server: a tiny Whisper that starts from zero, and the official client."""

import json
from typing import Any

import httpx
import openai
import pytest

from tests.integration.cluster import Running
from tests.integration.conftest import SPEECH
from tests.speech_files import TONE
from tests.timing import wait_until

CHOICES = {"model": SPEECH, "language": "en"}
BOUND = {"max_completion_tokens": 12}


def test_stream_of_speech_waits_for_a_replica_and_the_client_reads_the_same(
    app: Running, client: openai.OpenAI
) -> None:
    streamed = httpx.post(
        f"{app.url}/v1/audio/transcriptions",
        data={**CHOICES, **BOUND, "stream": "true", "stream_include_usage": "true"},
        files={"file": ("sea.wav", TONE)},
        timeout=120,
    )
    assert streamed.status_code == 200, streamed.text
    assert streamed.text.startswith(f": waiting for a replica of {SPEECH}")
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert '"latency":{"cold_wait_ms"' in streamed.text

    file = ("sea.wav", TONE)
    whole = client.audio.transcriptions.create(file=file, extra_body=BOUND, **CHOICES)
    stream = client.audio.transcriptions.create(file=file, stream=True, extra_body=BOUND, **CHOICES)
    text = "".join(event.choices[0]["delta"]["content"] for event in stream)
    with pytest.raises(openai.BadRequestError, match="Invalid or unsupported audio file"):
        client.audio.transcriptions.create(file=("sea.txt", b"no audio"), **CHOICES)
    with pytest.raises(openai.BadRequestError, match="does not support chat completions"):
        client.chat.completions.create(model=SPEECH, messages=[{"role": "user", "content": "sea"}])

    assert whole.text == text != ""


def test_request_log_has_transcriptions(app: Running) -> None:
    lines = wait_until(lambda: logged(app), what="three lines")

    assert {(line["operation"], line["model"]) for line in lines} == {("transcriptions", SPEECH)}
    # Four tokens come before the text: the beginning, the language, the task, and no timestamps.
    assert [(line["input_tokens"], line["output_tokens"]) for line in lines] == [(4, 12)] * 3


def logged(app: Running) -> list[dict[str, Any]]:
    """Return the lines of the request log, once all three requests are in it."""
    folder = app.folder / "ray" / "session_latest" / "logs" / "serve"
    files = folder.glob(f"requests.tideserve.Engine-{SPEECH}.*.jsonl")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return lines if len(lines) == 3 else []
