"""One application for most integration tests: a chat model, a model of one sequence, an embedder."""

from collections.abc import AsyncIterator, Iterator, Sequence

import httpx
import openai
import pytest

from tests.integration.cluster import Running, application, engine_settings
from tests.integration.there_and_back import ThereAndBack
from tests.integration.there_and_back import there_and_back as run_there_and_back

CHAT = "tideserve-tiny"
NARROW = "one-at-a-time"
EMBED = "tideserve-embed"


LONGEST_FIRST = ("app", "test_chaos", "test_autoscaling", "test_supervision", "there_and_back")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one server together, in one of xdist's processes, the longest first."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(server_of(item)))
    rank = {name: number for number, name in enumerate(LONGEST_FIRST)}
    # vLLM's server starts beside the application if its tests are the first of them.
    items.sort(key=lambda item: (rank.get(server_of(item), len(rank)), "starting" not in fixtures_of(item)))


def fixtures_of(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def server_of(item: pytest.Item) -> str:
    """The fixture that several modules share, or the module."""
    shared = {"app", "there_and_back"}.intersection(fixtures_of(item))
    return shared.pop() if shared else item.path.stem


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
