"""The metrics of every replica, from the metrics agents of Ray's nodes: concurrent callers share a scrape."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp
import ray

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.telemetry.exposition import NodeAnswer, cluster_exposition

_NODES_FRESH_S = 2.0
_NODES_WAIT_S = 0.3
_TOTAL_S = 0.9
"""Bound on a whole scrape, so that every caller has an answer within a second."""
_SHARED_S = 0.5
"""A caller gets the result of a scrape no older than this: agents have new values once a second."""


def _alive_nodes() -> list[str]:
    return [
        f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        for node in ray.nodes()
        if node["Alive"]
    ]


class NodeMetrics:
    """Scrapes the agents of the nodes that are alive.

    Args:
        nodes: Lists their addresses. It may block: it runs in a thread of its own.
        clock: Seconds.
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
        """Return the `llm_*` series of all nodes, at most half a second old, and which nodes are missing."""
        scrape = self._scrape
        if scrape is None or (scrape.done() and self._clock() - self._ended_at > _SHARED_S):
            scrape = self._scrape = asyncio.create_task(self._scrape_all())
        # A scraper that leaves must not end it for the others.
        return await asyncio.shield(scrape)

    async def _scrape_all(self) -> bytes:
        deadline = self._clock() + _TOTAL_S
        try:
            listed = await self._nodes.get(_NODES_WAIT_S)
            urls = listed.value if listed is not None else []
            answers = await asyncio.gather(*(self._ask(url, deadline) for url in urls))
            self._answered_at = {url: at for url, at in self._answered_at.items() if url in urls}
            return cluster_exposition(answers, self._nodes.age_s()).encode()
        finally:
            self._ended_at = self._clock()

    async def _ask(self, url: str, deadline: float) -> NodeAnswer:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        wait_s = deadline - self._clock()
        try:
            timeout = aiohttp.ClientTimeout(total=wait_s)
            async with self._session.get(url, timeout=timeout) as response:
                response.raise_for_status()
                text = await response.text()
        except (TimeoutError, aiohttp.ClientError, UnicodeDecodeError) as error:
            last = self._answered_at.get(url)
            why = " ".join(str(error).split()) or f"no answer within {wait_s:.1f} s"
            return NodeAnswer(url, None, None if last is None else self._clock() - last, why)
        self._answered_at[url] = self._clock()
        return NodeAnswer(url, text, 0.0)
