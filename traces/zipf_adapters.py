"""Requests for LoRA adapters, drawn by Zipf's law for a trace that names none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from serve_app.settings.model_names import MOST_ADAPTERS
from traces.trace import Chunk, Trace, TraceError, shown

_SEED = 7


@dataclass(frozen=True, slots=True)
class WithAdapters:
    """A trace of which a `share` of the requests is for one of so many adapters.

    The adapter of rank k is asked for 1 / k times as often as the first. Each reading draws the same.
    """

    trace: Trace
    adapters: int
    share: float

    @classmethod
    def parse(cls, trace: Trace, text: str) -> WithAdapters:
        """`trace` with adapters such as `200@50%`. Raises TraceError for a value out of bounds."""
        found = re.fullmatch(r"(\d{1,9})@(\d{1,9}(?:\.\d{1,9})?)%", text.strip())
        adapters, percent = (int(found[1]), float(found[2])) if found else (0, 0.0)
        if not 1 <= adapters <= MOST_ADAPTERS or not 0 < percent <= 100:
            raise TraceError(
                f"{shown(text)}: must be 1 to {MOST_ADAPTERS} adapters and their share of the requests, from "
                "above 0 to 100 %, such as 200@50%"
            )
        return cls(trace, adapters, percent / 100)

    @property
    def name(self) -> str:
        return self.trace.name

    @property
    def block_tokens(self) -> int:
        return self.trace.block_tokens

    def chunks(self) -> Iterator[Chunk]:
        draw = np.random.default_rng(_SEED)
        weights = 1.0 / np.arange(1, self.adapters + 1)
        for chunk in self.trace.chunks():
            drawn = draw.choice(self.adapters, len(chunk), p=weights / weights.sum()) + 1
            yield replace(chunk, adapters=np.where(draw.random(len(chunk)) < self.share, drawn, 0))

    def progress(self) -> float:
        return self.trace.progress()
