"""Starting and stopping an engine: vLLM's own front end, around a stub of the engine core."""

import asyncio
import json
import logging
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from vllm import __version__

from serve_app import env
from serve_app.api.errors import ApiError
from serve_app.api.upload import speech_body
from serve_app.engine.launch import RunningEngine, launch
from serve_app.engine.startup import Startup
from serve_app.ledger.meter import UsageMeter
from serve_app.ledger.usage import Account
from serve_app.settings.tree import ModelSettings
from tests.engine.calls import engine_call
from tests.engine.stub_engine_core import MODEL, StubEngineCore, put_in_place, vllm_restored

PHASES = ["imports", "configuration", "weights_and_kv_cache", "serving_layer", "warm_up"]


@pytest.fixture(autouse=True)
def _vllms_own_checks_afterwards() -> Iterator[None]:
    with vllm_restored():
        yield


class Start:
    """A start of the embedded model, and what it published and logged."""

    def __init__(self, core: StubEngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
        put_in_place(core, monkeypatch)
        self.documents: list[dict[str, Any]] = []
        self.metrics = MagicMock()
        self.request_log = MagicMock()
        self.meter = UsageMeter("tide", 1, 0.0)

    async def run(self, **model: Any) -> RunningEngine:
        startup = Startup("tide", lambda document: self.documents.append(json.loads(document)))
        settings = ModelSettings.model_validate(MODEL | model)
        return await launch(settings, self.metrics, startup, self.request_log, self.meter)


async def test_embedding_engines_share_compiled_files_and_compile_no_grammars(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    homes = [tmp_path / "first", tmp_path / "second"]
    (homes[0] / ".triton/cache").mkdir(parents=True)
    (homes[0] / ".triton/cache/kernel").touch()
    homes[1].mkdir()
    monkeypatch.setenv(env.COMPILE_CACHE, str(tmp_path / "shared"))
    archive = tmp_path / f"shared/vllm-{__version__}/tide.tar"
    for home in homes:
        monkeypatch.setenv("HOME", str(home))
        core = StubEngineCore(("embed",))
        engine = await Start(core, monkeypatch).run(name="tide", task="embed")
        while not archive.exists():
            await asyncio.sleep(0.01)
        assert engine.guard is None
        assert core.requests[0].pooling_params is not None
        size = engine.llm.vllm_config.cache_config.kv_cache_size_tokens
        assert engine.report.take(0).kv_cache_tokens == (size or 0)
        with pytest.raises(ApiError, match="does not support text generation"):
            async with engine.client.call(engine_call("generate", b'{"prompt":"sea"}', "r-1")):
                pass
        engine.shutdown()
        assert core.stopped_within_s == 10.0
    assert (homes[1] / ".triton/cache/kernel").exists()


async def test_engine_for_speech_is_warmed_up_with_a_second_of_silence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tests.engine.tiny_models import speech_model

    core = StubEngineCore(("transcription",))
    core.answer = [2056]  # the token of English, as which the handler detects the language

    with wave.open(str(tmp_path / "tone.wav"), "wb") as tone:
        tone.setparams((1, 2, 44_100, 0, "NONE", ""))
        tone.writeframes(bytes(4_410))

    start = Start(core, monkeypatch)
    engine = await start.run(task="transcribe", model=speech_model(tmp_path), max_model_len=64)

    detection, transcription = core.requests
    assert (detection.sampling_params.max_tokens, transcription.sampling_params.max_tokens) == (1, 2)
    assert not engine.llm.vllm_config.cache_config.enable_prefix_caching

    body = speech_body({"language": "en", "max_completion_tokens": 3}, (tmp_path / "tone.wav").read_bytes())
    salted = engine_call("transcriptions", body, "r-1", cache_salt="salt of a key")
    async with engine.client.call(salted) as reply:
        assert json.loads(reply.body)["text"] == ""
    assert core.requests[-1].cache_salt == "salt of a key"
    (line,) = [call.args[0] for call in start.request_log.add.call_args_list]
    assert (line.operation, line.input_tokens, line.output_tokens) == ("transcriptions", 4, 3)
    engine.shutdown()


async def test_an_engine_is_started_warmed_up_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    core = StubEngineCore()
    start = Start(core, monkeypatch)

    engine = await start.run()

    assert [document["phase"] for document in start.documents] == PHASES
    assert [request.sampling_params.max_tokens for request in core.requests] == [2]
    assert engine.guard is not None
    assert engine.first_runs.left == set()  # on a CPU the warm-up stays one request
    start.request_log.add.assert_not_called()
    signals = engine.report.take(0)
    assert (signals.finished_requests_total, signals.ttft_count) == (0, 0)  # not the warm-up's
    assert {account.state for account in start.meter.take()} <= {"starting", "idle"}

    async with engine.client.call(
        engine_call("generate", b'{"prompt":"sea","max_tokens":3}', "r-1")
    ) as reply:
        assert json.loads(reply.body)["finish_reason"] == "length"
    used = start.meter.take()[Account("tide", "", "standard")]
    assert (used.requests, used.completion_tokens) == (1, 3)
    signals = engine.report.take(0)
    assert (signals.finished_requests_total, signals.finished_generation_tokens_total) == (1, 3)
    (line,) = [call.args[0] for call in start.request_log.add.call_args_list]
    assert (line.request_id, line.output_tokens) == ("r-1", 3)

    cache = engine.llm.vllm_config.cache_config
    assert engine.prefix_cache_tokens == cache.kv_cache_size_tokens
    cache.enable_prefix_caching = False
    assert engine.prefix_cache_tokens == 0

    limits = engine.limits()
    assert limits.max_num_seqs == engine.llm.vllm_config.scheduler_config.max_num_seqs > 0
    assert limits.max_num_batched_tokens >= 256
    engine.shutdown()
    assert core.stopped_within_s == 10.0


async def test_engine_that_fails_to_warm_up_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = StubEngineCore()
    start = Start(core, monkeypatch)
    core.resources.engine_dead = True

    with pytest.raises(Exception, match="died"):
        await start.run()

    assert core.stopped_within_s == 10.0
    assert (start.documents[-1]["phase"], start.documents[-1]["during"]) == ("failed", "warm_up")


async def test_an_argument_that_vllm_refuses_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    core = StubEngineCore()
    start = Start(core, monkeypatch)

    with pytest.raises(ValueError, match="float5"):
        await start.run(engine_args={"kv_cache_dtype": "float5"})

    assert start.documents[-1]["during"] == "configuration"
    assert core.stopped_within_s is None


async def test_unchecked_vllm_release_is_logged_and_named_in_failures(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(StubEngineCore(), monkeypatch)
    monkeypatch.setattr("serve_app.patches.vllm_compat._RELEASE", (9, 0))
    monkeypatch.setattr("serve_app.patches.vllm_compat.OWN_STREAMS", False)

    with caplog.at_level(logging.WARNING, "ray.serve"), pytest.raises(ValueError, match="float5"):
        await start.run(engine_args={"kv_cache_dtype": "float5"})

    unchecked = f"vLLM {__version__} has not been checked with this engine, which is made for 0.32 and 0.33."
    assert caplog.messages[0] == f"model tide: {unchecked}"
    assert any("encodes chat streams itself" in message for message in caplog.messages)
    assert start.documents[-1]["reason"].endswith(f"({unchecked})")
