import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families

from serve_app.telemetry import exposition
from serve_app.telemetry.exposition import NodeMetrics, cluster_exposition, merge_expositions
from tests.stub_engine import LIMIT_S


def node(replica: str, requests: int, fast: int) -> str:
    """What one node's metrics agent serves: ours in between Ray's and the interpreter's."""
    labels = f'model="tide",replica="{replica}"'
    return f"""\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{{generation="0"}} 7.0
# HELP ray_llm_ttft_seconds Time to first token, from the engine's arrival.
# TYPE ray_llm_ttft_seconds histogram
ray_llm_ttft_seconds_bucket{{{labels},le="0.1"}} {fast}.0
ray_llm_ttft_seconds_bucket{{{labels},le="+Inf"}} {requests}.0
ray_llm_ttft_seconds_sum{{{labels}}} 1.5
ray_llm_ttft_seconds_count{{{labels}}} {requests}.0
# HELP ray_serve_num_http_requests_total Requests.
# TYPE ray_serve_num_http_requests_total counter
ray_serve_num_http_requests_total{{route="ray_llm_x"}} 9.0
# HELP ray_llm_requests_total Finished generations, by finish reason.
# TYPE ray_llm_requests_total counter
ray_llm_requests_total{{{labels},finish_reason="stop"}} {requests}.0
# HELP ray_llm_queue_depth Requests waiting in the engine's queue.
# TYPE ray_llm_queue_depth gauge
ray_llm_queue_depth{{{labels}}} 0.0
"""


MERGED = merge_expositions([node("a", 10, 4), node("b", 20, 5)])


def test_the_result_is_a_text_prometheus_parses() -> None:
    families = {family.name: family for family in text_string_to_metric_families(MERGED)}

    assert {name: family.type for name, family in families.items()} == {
        "llm_ttft_seconds": "histogram",
        "llm_requests": "counter",  # the parser's name of llm_requests_total
        "llm_queue_depth": "gauge",
    }
    assert families["llm_queue_depth"].documentation == "Requests waiting in the engine's queue."


def test_the_series_of_every_node_are_there_with_their_values() -> None:
    values = {
        (sample.labels["replica"], sample.name): sample.value
        for family in text_string_to_metric_families(MERGED)
        for sample in family.samples
        if "le" not in sample.labels
    }

    assert values == {
        ("a", "llm_ttft_seconds_sum"): 1.5,
        ("a", "llm_ttft_seconds_count"): 10.0,
        ("a", "llm_requests_total"): 10.0,
        ("a", "llm_queue_depth"): 0.0,
        ("b", "llm_ttft_seconds_sum"): 1.5,
        ("b", "llm_ttft_seconds_count"): 20.0,
        ("b", "llm_requests_total"): 20.0,
        ("b", "llm_queue_depth"): 0.0,
    }


def test_each_family_is_described_once_and_its_samples_stand_together() -> None:
    lines = MERGED.splitlines()

    types = [line.split(" ")[2] for line in lines if line.startswith("# TYPE")]
    assert types == ["llm_queue_depth", "llm_requests_total", "llm_ttft_seconds"]
    assert [line.split(" ")[2] for line in lines if line.startswith("# HELP")] == types
    family_of = [
        next(name for name in types if line.startswith(name)) for line in lines if not line.startswith("#")
    ]
    assert family_of == sorted(family_of)


@pytest.mark.parametrize(
    ("text", "merged"),
    [
        # A label that looks like a metric keeps its value; a family without a description is untyped.
        (
            'ray_llm_new{model="ray_llm_x y"} 1.0\n',
            '# HELP llm_new \n# TYPE llm_new untyped\nllm_new{model="ray_llm_x y"} 1.0\n',
        ),
        # A counter that merely ends like a histogram's part is a family of its own.
        (
            "# TYPE ray_llm_token_count counter\nray_llm_token_count 3.0\n",
            "# HELP llm_token_count \n# TYPE llm_token_count counter\nllm_token_count 3.0\n",
        ),
        # vLLM's names get back the colon that Ray replaced.
        (
            '# TYPE ray_vllm_x histogram\nray_vllm_x_bucket{le="vllm_1"} 1.0\nray_vllm_x_count 1.0\n',
            '# HELP vllm:x \n# TYPE vllm:x histogram\nvllm:x_bucket{le="vllm_1"} 1.0\nvllm:x_count 1.0\n',
        ),
        # A family without samples is not described.
        ("# HELP ray_llm_new New.\n# TYPE ray_llm_new gauge\n", "\n"),
    ],
)
def test_odd_families_are_merged_too(text: str, merged: str) -> None:
    assert merge_expositions([text]) == merged


def test_lost_node_is_named_and_other_nodes_are_served() -> None:
    lost = "# lost node http://10.0.0.8:8080/metrics: connection refused; last answered 12.3 s ago"
    answers = {
        "http://10.0.0.7:8080/metrics": node("a", 10, 4),
        "http://10.0.0.8:8080/metrics": f"{lost}\n",
        "http://10.0.0.6:8080/metrics": node("b", 20, 5),
    }

    merged = cluster_exposition(answers, 0.25)

    assert merged.startswith(f"{lost}\n# HELP")
    families = {family.name: family for family in text_string_to_metric_families(merged)}
    up = {sample.labels["node"]: sample.value for sample in families["llm_metrics_node_up"].samples}
    assert up == {"10.0.0.7:8080": 1, "10.0.0.8:8080": 0, "10.0.0.6:8080": 1}
    assert families["llm_metrics_nodes_age_seconds"].samples[0].value == 0.25
    assert {family for family in families if "llm_metrics" not in family} == {
        "llm_ttft_seconds", "llm_requests", "llm_queue_depth",
    }  # fmt: skip


def test_unknown_nodes_give_no_age_and_no_series() -> None:
    assert list(text_string_to_metric_families(cluster_exposition({}, None))) == []


@pytest.mark.parametrize(
    "comment", ["#", "# EOF", "# HELP", "# TYPE", "#HELP ray_llm_x", "# by hand, for a test"]
)
def test_comments_are_no_metrics(comment: str) -> None:
    assert merge_expositions([comment + "\n", node("a", 10, 4), node("b", 20, 5)]) == MERGED


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


def up(agent: Agent) -> str:
    return f'llm_metrics_node_up{{node="127.0.0.1:{agent.server.port}"}}'


async def test_every_node_is_scraped_and_told_to_be_up(cluster: Cluster) -> None:
    first, second = cluster.agents

    assert set(await cluster.lines()) == {
        "llm_scrapes 1", f"{up(first)} 1", f"{up(second)} 1", "llm_metrics_nodes_age_seconds 0.000",
    }  # fmt: skip


async def test_a_hundred_scrapers_share_one_scrape(cluster: Cluster) -> None:
    answers = await asyncio.gather(*(cluster.metrics.exposition() for _ in range(100)))
    cluster.now += 0.5
    answers += await asyncio.gather(*(cluster.metrics.exposition() for _ in range(100)))

    assert len(set(answers)) == 1
    assert [agent.scrapes for agent in cluster.agents] == [1, 1]

    cluster.now += 0.1
    await cluster.metrics.exposition()
    assert [agent.scrapes for agent in cluster.agents] == [2, 2]


async def test_hanging_agent_is_named_without_its_old_series(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, hanging = cluster.agents
    await cluster.lines()
    monkeypatch.setattr(exposition, "_TOTAL_S", 0.1)
    hanging.answers.clear()
    cluster.now += 30.0

    lines = await cluster.lines()

    assert lines[0].startswith(f"# lost node {hanging.url}: ")
    assert lines[0].endswith("; last answered 30.0 s ago")
    assert {f"{up(whole)} 1", f"{up(hanging)} 0"} <= set(lines)
    assert [line for line in lines if line.startswith("llm_scrapes")] == ["llm_scrapes 2"]


async def test_an_agent_that_refuses_is_named(cluster: Cluster) -> None:
    cluster.agents[1].status = 500

    lines = await cluster.lines()

    assert lines[0].startswith(f"# lost node {cluster.agents[1].url}: 500")
    assert lines[0].endswith("; never answered before")


async def test_known_nodes_are_scraped_while_the_gcs_hangs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.lines()
    monkeypatch.setattr(exposition, "_NODES_WAIT_S", 0.01)
    cluster.gcs.clear()
    cluster.now += 40.0

    lines = await cluster.lines()

    assert "llm_metrics_nodes_age_seconds 40.000" in lines
    assert "llm_scrapes 2" in lines
