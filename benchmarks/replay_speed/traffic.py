"""Traces of any length, made as they are read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from loadtests.traces.chunks import part
from loadtests.traces.trace import CHUNK_REQUESTS, Chunk, Trace

_MEAN_RPS = 33.0
_SWING = 0.5
_PERIOD_S = 3600.0


class Swinging:
    """Poisson arrivals at a rate that swings every hour between 22 and 66 a second, all from one seed.

    Prompts and answers are log-normal: 1,000 and 180 tokens on average, prompts at most 2,048.
    """

    name = "swinging"
    block_tokens = 0

    def __init__(self, requests: int, seed: int = 0) -> None:
        self._requests = requests
        self._seed = seed
        self._given = 0

    def chunks(self) -> Iterator[Chunk]:
        """See `Trace`."""
        draw = np.random.default_rng(self._seed)
        at = 0.0
        for start in range(0, self._requests, CHUNK_REQUESTS):
            count = min(CHUNK_REQUESTS, self._requests - start)
            # Evenly first; then time itself is bent, which makes them slower and faster.
            even = at + np.cumsum(draw.exponential(1.0 / _MEAN_RPS, count))
            at = float(even[-1])
            bend = _SWING * _PERIOD_S / (2 * math.pi)
            arrivals = even + bend * (1.0 - np.cos(2 * math.pi * even / _PERIOD_S))
            prompts = np.clip(np.exp(draw.normal(6.9, 0.8, count)), 1, 2048).astype(np.int64)
            outputs = np.clip(np.exp(draw.normal(4.8, 0.9, count)), 1, 2048).astype(np.int64)
            self._given = start + count
            yield Chunk(arrivals, prompts, outputs)

    def progress(self) -> float:
        """See `Trace`."""
        return self._given / self._requests


class Repeated:
    """A trace again and again, end to end, up to a number of requests."""

    def __init__(self, trace: Trace, requests: int) -> None:
        self._trace = trace
        self._requests = requests
        self._given = 0
        self.name = f"{trace.name} repeated"
        self.block_tokens = trace.block_tokens

    def chunks(self) -> Iterator[Chunk]:
        """See `Trace`."""
        self._given = 0
        start_s = end_s = 0.0
        while self._given < self._requests:
            for chunk in self._trace.chunks():
                left = self._requests - self._given
                if not left:
                    return
                moved = replace(chunk, arrival_s=chunk.arrival_s + start_s)
                self._given += min(left, len(moved))
                yield moved if left >= len(moved) else part(moved, 0, left)
                end_s = float(moved.arrival_s[-1])
            start_s = end_s

    def progress(self) -> float:
        """See `Trace`."""
        return self._given / self._requests
