"""One application for most integration tests: a chat model, a model of one sequence, an embedder."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.integration.cluster import Running, application, engine_settings
from tests.integration.there_and_back import ThereAndBack
from tests.integration.there_and_back import there_and_back as run_there_and_back

CHAT = "tideserve-tiny"
NARROW = "one-at-a-time"
EMBED = "tideserve-embed"


SERVERS = {
    "test_supervision": "supervision",
    "test_chaos": "chaos",
    "test_autoscaling": "autoscaling",
    "test_kubernetes": "there_and_back",
    "test_loadtest": "there_and_back",
    "test_held_requests": "held_requests",
    "test_other_ways": "other_ways",
    "test_gpu_placement": "gpu_placement",
}
"""The servers of modules, except of those that ask `app`. After it the longest, but for the second: no engine
of it starts beside the three of `app`."""


class OneServer(LoadScopeScheduling):
    """Keeps the modules that ask the same server in one of xdist's processes."""

    def _split_scope(self, nodeid: str) -> str:
        return SERVERS.get(Path(nodeid.partition("::")[0]).stem, "app")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneServer:
    return OneServer(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of `app` first, and of these the ones beside which vLLM's own server starts."""
    order = ["test_same_tokens_as_vllm", "", *SERVERS]
    items.sort(key=lambda item: order.index(item.path.stem if item.path.stem in order else ""))


@pytest.fixture(scope="session")
def app() -> Iterator[Running]:
    running = Running(
        application(
            engine_settings(CHAT, tool_call_parser="hermes"),
            engine_settings(NARROW, max_num_seqs=1, kv_cache_memory_bytes=64 << 20),
            engine_settings(EMBED, task="embed", max_num_seqs=8, kv_cache_memory_bytes=64 << 20),
        )
    )
    with running.serving():
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
    with httpx.Client(base_url=app.url, timeout=60) as made:
        yield made
