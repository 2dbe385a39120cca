"""Small traces written by hand, and what reading them comes to."""

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from traces.trace import CHUNK_REQUESTS, Trace

PLAIN = "arrival_s,input_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@dataclass
class Requests:
    """Everything a trace has, as lists."""

    arrivals: list[float] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)


def requests(trace: Trace) -> Requests:
    """Read a trace to its end, and hold it to what every trace promises."""
    read = Requests()
    newest = 0.0
    for chunk in trace.chunks():
        assert 0 < len(chunk) <= CHUNK_REQUESTS
        assert len(chunk.arrival_s) == len(chunk.input_tokens) == len(chunk.output_tokens)
        assert chunk.arrival_s.dtype == np.float64
        assert chunk.input_tokens.dtype == chunk.output_tokens.dtype == np.int64
        assert chunk.arrival_s[0] >= newest
        assert np.all(np.diff(chunk.arrival_s) >= 0)
        assert chunk.input_tokens.min() >= 1
        assert chunk.output_tokens.min() >= 1
        newest = float(chunk.arrival_s[-1])
        read.arrivals += chunk.arrival_s.tolist()
        read.inputs += chunk.input_tokens.tolist()
        read.outputs += chunk.output_tokens.tolist()
        if trace.block_tokens:
            assert len(chunk.block_starts) == len(chunk) + 1
            assert (chunk.block_starts[0], chunk.block_starts[-1]) == (0, len(chunk.blocks))
            starts = chunk.block_starts.tolist()
            blocks = chunk.blocks.tolist()
            read.blocks += [blocks[starts[i] : starts[i + 1]] for i in range(len(chunk))]
        else:
            assert len(chunk.block_starts) == len(chunk.blocks) == 0
    assert trace.progress() == 1.0
    return read


def written(folder: Path, content: str | bytes, name: str = "trace", *, zipped: bool = False) -> Path:
    """A file with this content."""
    data = content if isinstance(content, bytes) else content.encode()
    path = folder / name
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


def json_lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def log_line(arrived_at: float, inputs: int = 10, outputs: int = 5, **more: Any) -> dict[str, Any]:
    """A line of our request log."""
    return {
        "arrived_at": arrived_at,
        "input_tokens": inputs,
        "output_tokens": outputs,
        "model": "tide",
        **more,
    }
