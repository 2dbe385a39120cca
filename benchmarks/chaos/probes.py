"""Asks a server the same three things five times a second, each on a new connection."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from benchmarks.chaos.observed import INTERVAL_S, Probe, Ready, Trace

_ANSWER_TIMEOUT_S = 120.0
"""A client that waits for a cold start waits long."""
_STATE_TIMEOUT_S = 10.0
_MOST_OPEN = 1000
_SHOWN = 200


class Prober:
    """Writes what it finds into a trace."""

    def __init__(self, url: str, model: str, headers: Mapping[str, str], trace: Trace) -> None:
        self._url, self._model, self._trace = url, model, trace
        # `force_close`: a client that comes anew, and no connection of one that was there before.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, headers=headers)
        self._open: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Ask until cancelled; requests under way are then recorded as unanswered."""
        began, number = time.monotonic(), 0
        try:
            while True:
                if len(self._open) < _MOST_OPEN:
                    for ask in (self._answer, self._ready, self._health):
                        self._start(ask)
                number += 1
                await asyncio.sleep(began + number * INTERVAL_S - time.monotonic())
        finally:
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            await self._session.close()

    def _start(self, ask: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(ask())
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _answer(self) -> None:
        body = {"model": self._model, "prompt": "x", "max_tokens": 1, "temperature": 0}
        request = self._session.post(
            f"{self._url}/v1/completions", json=body, timeout=aiohttp.ClientTimeout(_ANSWER_TIMEOUT_S)
        )
        self._trace.answers.append(await _probe(request))

    async def _health(self) -> None:
        request = self._session.get(f"{self._url}/health", timeout=aiohttp.ClientTimeout(_STATE_TIMEOUT_S))
        self._trace.healths.append(await _probe(request))

    async def _ready(self) -> None:
        request = self._session.get(f"{self._url}/ready", timeout=aiohttp.ClientTimeout(_STATE_TIMEOUT_S))
        sent_s = time.monotonic()
        status, text, error = await _exchange(request)
        self._trace.readies.append(ready_answer(sent_s, time.monotonic(), status, text, self._model, error))


def ready_answer(sent_s: float, ended_s: float, status: int, text: str, model: str, error: str = "") -> Ready:
    """What an answer of `/ready` says of a model. One that is not of its shape says nothing."""
    if error:
        return Ready(sent_s, ended_s, "nothing", error=error)
    try:
        told: dict[str, Any] = json.loads(text)["models"][model]
        up = status == 200 and told["state"] == "up"
        return Ready(sent_s, ended_s, "up" if up else "down", int(told["replicas"]))
    except (ValueError, KeyError, TypeError):
        return Ready(sent_s, ended_s, "nothing", error=f"HTTP {status}: {text[:_SHOWN]}")


async def _probe(request: Any) -> Probe:
    sent_s = time.monotonic()
    status, text, error = await _exchange(request)
    if not error and status != 200:
        error = f"HTTP {status}: {text[:_SHOWN]}"
    return Probe(sent_s, time.monotonic(), not error, error)


async def _exchange(request: Any) -> tuple[int, str, str]:
    """Status, body and, if there was no answer, why."""
    try:
        async with request as response:
            return response.status, await response.text(), ""
    except asyncio.CancelledError:
        return 0, "", "unanswered when the run ended"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return 0, "", f"{type(error).__name__}: {error}"[:_SHOWN]
