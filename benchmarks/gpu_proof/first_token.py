"""Seconds from a request to the first token of its answer, wherever it is sent."""

import time
from collections.abc import Sequence

import httpx

from benchmarks.gpu_proof.bench import NAME

_TOKENS = (301, 302, 303, 304, 305, 306, 307, 308)
"""Ids that every vocabulary has."""


def first_token_s(url: str, timeout_s: float, prompt: Sequence[int] = _TOKENS) -> float:
    """Stream two tokens, and return the seconds to the first. Comments of a held stream do not count.

    Raises:
        RuntimeError: for an answer that is an error or ends before a token.
    """
    body = {"model": NAME, "prompt": list(prompt), "max_tokens": 2, "ignore_eos": True, "stream": True}
    began = time.perf_counter()
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=timeout_s) as reply:
        if reply.status_code != 200:
            raise RuntimeError(f"{url} answers {reply.status_code}: {reply.read().decode()[:300]}")
        for line in reply.iter_lines():
            if line.startswith("event: error"):
                raise RuntimeError(f"{url} ended the stream with an error")
            if line.startswith("data: {"):
                return time.perf_counter() - began
    raise RuntimeError(f"{url} ended the stream before its first token")
