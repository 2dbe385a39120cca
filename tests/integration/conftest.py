"""The servers of the integration tests. Most tests share `app`, those of scaling and losses `fleet`."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.integration.cluster import Running, application, engine_settings
from tests.integration.fleet import new_fleet
from tests.integration.prometheus import FAST_EXPORT
from tests.integration.there_and_back import ThereAndBack
from tests.integration.there_and_back import there_and_back as run_there_and_back

CHAT = "tideserve-tiny"
NARROW = "one-at-a-time"
EMBED = "tideserve-embed"
SPEECH = "whisper"
"""At zero, until a test sends it speech."""
ALIAS = "gpt-4o"
"""An alias of `CHAT`; it has the alias `claude-*` too."""


ORDER = [
    "test_autoscaling",
    "test_page",
    "test_held_requests",
    "test_background",  # starts `app` meanwhile
    "test_adapters",
    "test_ledger",
    "test_batches",  # leaves two engines, which `test_chaos` needs
    "test_chaos",  # ends `fleet`
    "test_same_tokens_as_vllm",  # vLLM's own server starts beside `app`
    "",  # the other modules ask `app`
    "test_speech",  # starts the model of `app` that the others find at zero
    "test_documents",
    "test_redeploy",  # replaces the ingress of `app`
    "test_supervision",  # ends `app`
    "test_node_loss",
    "test_there_and_back",
    "test_other_ways",
    "test_init",
    "test_traces",
    "test_gpu_placement",
    "test_gpu_workers",
    "test_flood",
]
WRITE_SPEECH_MODEL = """
import pathlib, sys
from tests.engine.tiny_models import speech_model
speech_model(pathlib.Path(sys.argv[1]))
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the modules so that no server runs longer than its tests."""
    items.sort(key=lambda item: ORDER.index(item.path.stem if item.path.stem in ORDER else ""))


@pytest.fixture(scope="session", autouse=True)
def early_speech_model(request: pytest.FixtureRequest) -> None:
    """Begin to write the model of speech if any test needs it."""
    if any("starting_app" in item.fixturenames for item in request.session.items):  # type: ignore[attr-defined]
        request.getfixturevalue("speech_model")


@pytest.fixture(scope="session")
def speech_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The process that writes a model of speech while tests wait, and the model's folder.

    The process imports vLLM, which takes 10 s of CPU time.
    """
    folder = tmp_path_factory.mktemp("speech")
    with subprocess.Popen(["nice", "-n", "5", sys.executable, "-c", WRITE_SPEECH_MODEL, folder]) as writing:
        yield writing, folder


@pytest.fixture(scope="session")
def starting_app(speech_model: tuple[subprocess.Popen[bytes], Path]) -> Iterator[tuple[Running, Future[Any]]]:
    """`app` from its start on, and what ends when it is ready."""
    writing, folder = speech_model
    assert writing.wait(240) == 0
    speech = {"task": "transcribe", "model": str(folder), "dtype": "float32", "max_model_len": 64}
    running = Running(
        application(
            engine_settings(CHAT, tool_call_parser="hermes"),
            engine_settings(NARROW, max_num_seqs=1, kv_cache_memory_bytes=64 << 20, vllm_metrics=True),
            engine_settings(EMBED, task="embed", max_num_seqs=8, kv_cache_memory_bytes=64 << 20),
            engine_settings(SPEECH, **speech, kv_cache_memory_bytes=32 << 20),
            knobs={
                CHAT: {"aliases": [ALIAS, "claude-*"]},
                SPEECH: {"min_replicas": 0, "keep_alive_interval_s": 0.5},
            },
        ),
        environment=FAST_EXPORT,
    )
    running.start()
    with ThreadPoolExecutor(1) as thread:
        try:
            yield running, thread.submit(running.wait_ready)
        finally:
            running.end()


@pytest.fixture(scope="session")
def app(starting_app: tuple[Running, Future[Any]]) -> Running:
    running, ready = starting_app
    ready.result()
    return running


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with new_fleet(str(tmp_path_factory.mktemp("policy") / "raises")).serving() as running:
        yield running


@pytest.fixture(scope="session")
def there_and_back() -> Iterator[ThereAndBack]:
    with run_there_and_back() as ran:
        yield ran


@pytest.fixture(scope="session")
def client(app: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
async def async_client(app: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="session")
def http(app: Running) -> Iterator[httpx.Client]:
    headers = {"Content-Type": "application/json"}  # of bodies that a test writes itself
    with httpx.Client(base_url=app.url, headers=headers, timeout=60) as made:
        yield made
