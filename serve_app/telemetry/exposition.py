"""The metrics of all replicas, from the metrics agents of Ray's nodes, without Ray's prefix."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

import aiohttp
import ray

from serve_app.cluster.bounded_call import BoundedCall

_OURS = re.compile(r"^ray_(v?llm_[a-zA-Z0-9_]*)")
_LOST_NODE = "# lost node"
_PART = re.compile("_(bucket|sum|count)$")
"""The ends of the names of a histogram's series."""
_HISTOGRAM = re.compile("^ TYPE ray_(v?llm_[a-zA-Z0-9_]*)(?: histogram|_bucket gauge)$", re.MULTILINE)
"""Ray's histograms, and `TalliedHistogram`, whose parts are gauges to Ray."""
_NODES_FRESH_S = 2.0
_NODES_WAIT_S = 0.3
_TOTAL_S = 0.9
"""The bound on a scrape, so that each caller has an answer within a second."""
_SHARED_S = 0.5
"""Callers share a scrape that is not older. Agents have new values once a second."""


def _alive_nodes() -> list[str]:
    return [
        f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        for node in ray.nodes()
        if node["Alive"]
    ]


class NodeMetrics:
    """Scrapes the agents of the nodes that are alive.

    Concurrent callers share a scrape. `nodes` may block, because it runs in its own thread.
    """

    def __init__(
        self, nodes: Callable[[], list[str]] = _alive_nodes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._nodes = BoundedCall("the list of nodes", nodes, _NODES_FRESH_S, clock)
        self._answered_at: dict[str, float] = {}
        self._scrape: asyncio.Task[bytes] | None = None
        self._ended_at = float("-inf")
        self._session: aiohttp.ClientSession | None = None

    async def exposition(self) -> bytes:
        """Return our series of all nodes, at most half a second old. Comments name missing nodes."""
        scrape = self._scrape
        if scrape is None or (scrape.done() and self._clock() - self._ended_at > _SHARED_S):
            scrape = self._scrape = asyncio.create_task(self._scrape_all())
        # A caller that leaves must not end the scrape for others.
        return await asyncio.shield(scrape)

    async def _scrape_all(self) -> bytes:
        deadline = self._clock() + _TOTAL_S
        try:
            listed = await self._nodes.get(_NODES_WAIT_S)
            urls = listed.value if listed is not None else []
            answers = await asyncio.gather(*(self._ask(url, deadline) for url in urls))
            self._answered_at = {url: at for url, at in self._answered_at.items() if url in urls}
            by_url, age_s = dict(zip(urls, answers, strict=True)), self._nodes.age_s()
            # In a thread: with a thousand replicas the series have 30 MB, and streams must not stand still.
            return await asyncio.to_thread(lambda: cluster_exposition(by_url, age_s).encode())
        finally:
            self._ended_at = self._clock()

    async def _ask(self, url: str, deadline: float) -> str:
        """Return the agent's exposition; if it does not answer, a comment, which `merge_expositions` keeps.

        A lost node's old series are left out: Prometheus would take them for new.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        wait_s = deadline - self._clock()
        try:
            timeout = aiohttp.ClientTimeout(total=wait_s)
            async with self._session.get(url, timeout=timeout) as response:
                response.raise_for_status()
                text = await response.text()
        except (TimeoutError, aiohttp.ClientError, UnicodeDecodeError) as error:
            why = " ".join(str(error).split()) or f"no answer within {wait_s:.1f} s"
            last = "never answered before"
            if url in self._answered_at:
                last = f"last answered {self._clock() - self._answered_at[url]:.1f} s ago"
            return f"{_LOST_NODE} {url}: {why}; {last}\n"
        self._answered_at[url] = self._clock()
        return text


def cluster_exposition(answers: Mapping[str, str], nodes_age_s: float | None) -> str:
    """Return our series of all nodes that have answered, and comments on the others.

    `answers` has the URLs of the nodes' agents as keys. `nodes_age_s` is the age of the list of nodes from
    Ray's GCS; None if the GCS has never answered.
    """
    if nodes_age_s is None:
        return "# the nodes are not known: Ray's GCS has not answered yet\n"
    own = [
        "# HELP ray_llm_metrics_node_up Whether the metrics agent of a node has answered this scrape.",
        "# TYPE ray_llm_metrics_node_up gauge",
        *(
            f'ray_llm_metrics_node_up{{node="{urlsplit(url).netloc}"}} {int(not text.startswith(_LOST_NODE))}'
            for url, text in answers.items()
        ),
        "# HELP ray_llm_metrics_nodes_age_seconds Age of the list of nodes that were asked.",
        "# TYPE ray_llm_metrics_nodes_age_seconds gauge",
        f"ray_llm_metrics_nodes_age_seconds {nodes_age_s:.3f}",
    ]
    return merge_expositions([*answers.values(), "\n".join(own)])


def merge_expositions(texts: Iterable[str]) -> str:
    """Return the `llm_*` and `vllm:*` series of all texts, with one description per family."""
    described: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    lines: list[str] = []
    for text in texts:
        # A family's lines stand together. Moved as one text, they take a tenth of the time of single lines.
        undescribed, *parts = ("\n" + text.rstrip("\n")).split("\n#")
        histograms = set(_HISTOGRAM.findall("\n".join(part.partition("\n")[0] for part in parts)))
        for comment, _, rest in (
            ("", "", undescribed.strip("\n")),
            *(part.partition("\n") for part in parts),
        ):
            line = f"#{comment}"
            _, keyword, name, *more = [*line.split(" ", 3), "", ""]
            if line.startswith(_LOST_NODE):
                lines.append(line)
            elif keyword in ("HELP", "TYPE") and (match := _OURS.match(name)):
                family = _family(match[1], histograms)
                kind = "histogram" if keyword == "TYPE" and family in histograms else more[0]
                described.setdefault(family, {})[keyword] = kind
            for block in [rest] if _is_one_family(rest, histograms) else rest.splitlines():
                if match := _OURS.match(block):
                    samples.setdefault(_family(match[1], histograms), []).append(_original(block))
    for family in sorted(samples):
        texts_of = described.get(family, {})
        name = _original(family)
        lines.append(f"# HELP {name} {texts_of.get('HELP', '')}")
        lines.append(f"# TYPE {name} {texts_of.get('TYPE', 'untyped')}")
        lines += samples[family]
    return "\n".join(lines) + "\n"


def _is_one_family(text: str, histograms: set[str]) -> bool:
    """Whether all lines of a text are samples of the family of its first line."""
    match = _OURS.match(text)
    if match is None:
        return "\nray_" not in text
    begin = f"\nray_{_family(match[1], histograms)}"
    return text.count("\n") == text.count(begin)


def _original(text: str) -> str:
    """Return lines with the names that their process gave them: Ray adds a prefix, and takes no colon."""
    return f"\n{text}".replace("\nray_", "\n").replace("\nvllm_", "\nvllm:").strip("\n")


def _family(name: str, histograms: set[str]) -> str:
    whole = _PART.sub("", name)
    return whole if whole in histograms else name
