"""Scrapes of real HTTP servers in the place of Ray's metrics agents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from serve_app.telemetry import node_metrics
from serve_app.telemetry.node_metrics import NodeMetrics
from tests.stub_engine import LIMIT_S


class Agent:
    """A node's metrics agent: answers with its number of scrapes, when it is let."""

    def __init__(self) -> None:
        self.scrapes = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.status = 200
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        self.server = TestServer(app)

    async def _metrics(self, request: web.Request) -> web.Response:
        self.scrapes += 1
        number = self.scrapes
        await self.answers.wait()
        return web.Response(text=f"ray_llm_scrapes {number}\n", status=self.status)

    @property
    def url(self) -> str:
        return str(self.server.make_url("/metrics"))


class Cluster:
    """Two nodes, and the metrics of them all."""

    def __init__(self) -> None:
        self.now = 100.0
        self.agents = [Agent(), Agent()]
        self.gcs = threading.Event()
        self.gcs.set()
        self.metrics = NodeMetrics(self._nodes, lambda: self.now)

    def _nodes(self) -> list[str]:
        assert self.gcs.wait(LIMIT_S)
        return [agent.url for agent in self.agents]

    async def lines(self) -> list[str]:
        """Of the exposition, without descriptions and what each scrape has of its own."""
        text = (await self.metrics.exposition()).decode()
        return [line for line in text.splitlines() if not line.startswith(("# HELP", "# TYPE"))]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    for agent in made.agents:
        await agent.server.start_server()
    yield made
    made.gcs.set()
    for agent in made.agents:
        agent.answers.set()
        await agent.server.close()
    if made.metrics._session is not None:
        await made.metrics._session.close()


def node(agent: Agent) -> str:
    return f'llm_metrics_node_up{{node="127.0.0.1:{agent.server.port}"}}'


async def test_every_node_is_scraped_and_told_to_be_up(cluster: Cluster) -> None:
    first, second = cluster.agents

    assert set(await cluster.lines()) == {
        "llm_scrapes 1", f"{node(first)} 1", f"{node(second)} 1", "llm_metrics_nodes_age_seconds 0.000",
    }  # fmt: skip


async def test_a_hundred_scrapers_at_once_and_shortly_after_are_one_scrape(cluster: Cluster) -> None:
    answers = await asyncio.gather(*(cluster.metrics.exposition() for _ in range(100)))
    cluster.now += 0.5
    answers += await asyncio.gather(*(cluster.metrics.exposition() for _ in range(100)))

    assert len(set(answers)) == 1
    assert [agent.scrapes for agent in cluster.agents] == [1, 1]

    cluster.now += 0.1
    await cluster.metrics.exposition()
    assert [agent.scrapes for agent in cluster.agents] == [2, 2]


async def test_a_scraper_that_leaves_takes_nothing_from_the_others(cluster: Cluster) -> None:
    cluster.agents[0].answers.clear()
    leaving, staying = (asyncio.create_task(cluster.metrics.exposition()) for _ in range(2))
    async with asyncio.timeout(LIMIT_S):
        while not cluster.agents[0].scrapes:
            await asyncio.sleep(0)

    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    cluster.agents[0].answers.set()

    assert b"llm_scrapes 1" in await staying
    assert cluster.agents[0].scrapes == 1


async def test_an_agent_that_hangs_is_named_and_its_old_series_are_not_served(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, hanging = cluster.agents
    await cluster.lines()
    monkeypatch.setattr(node_metrics, "_TOTAL_S", 0.1)
    hanging.answers.clear()
    cluster.now += 30.0

    lines = await cluster.lines()

    assert lines[0].startswith(f"# lost node {hanging.url}: ")
    assert lines[0].endswith("; last answered 30.0 s ago")
    assert {f"{node(whole)} 1", f"{node(hanging)} 0"} <= set(lines)
    assert [line for line in lines if line.startswith("llm_scrapes")] == ["llm_scrapes 2"]


async def test_an_agent_that_refuses_is_named(cluster: Cluster) -> None:
    cluster.agents[1].status = 500

    lines = await cluster.lines()

    assert lines[0].startswith(f"# lost node {cluster.agents[1].url}: 500")
    assert lines[0].endswith("; never answered before")


async def test_while_the_gcs_hangs_the_nodes_known_last_are_scraped_and_the_age_of_the_list_is_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.lines()
    monkeypatch.setattr(node_metrics, "_NODES_WAIT_S", 0.01)
    cluster.gcs.clear()
    cluster.now += 40.0

    lines = await cluster.lines()

    assert "llm_metrics_nodes_age_seconds 40.000" in lines
    assert "llm_scrapes 2" in lines


async def test_before_the_nodes_are_known_there_are_no_series(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_metrics, "_NODES_WAIT_S", 0.01)
    cluster.gcs.clear()

    assert await cluster.lines() == ["# the nodes are not known: Ray's GCS has not answered yet"]
