"""Stages `smoke`, `eager-start` and `lost-replica`: what a first GPU most likely refuses, within minutes."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import httpx
import psutil

from benchmarks.chaos.processes import Processes
from benchmarks.cold_start.measure import await_phases
from benchmarks.common.progress import say
from benchmarks.common.server_process import ServerError
from benchmarks.gpu_proof.bench import NAME, Bench, plain

_ANSWER_S = 420.0
"""The longest wait for an answer. On two busy cores nvcc took 192 s for one of FlashInfer's three files."""
_BACK_S = 300.0
_LOOK_S = 0.25
_CITY = {"type": "string", "maxLength": 20}
_SCHEMA = {"type": "object", "properties": {"city": _CITY}, "required": ["city"]}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 20},
    "min_p": {"min_p": 0.05},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "seed": {"seed": 7},
    "logprobs": {"logprobs": True, "top_logprobs": 5},
    "two sequences": {"n": 2},
    "JSON schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}}
    },
}
"""Kinds of requests that use different kernels of the sampler, by name."""


def smoke(bench: Bench) -> dict[str, Any]:
    """Serve the model as a user would, and send one chat."""
    bench.stop()
    began = time.perf_counter()
    url = bench.url()
    start_s = time.perf_counter() - began
    with httpx.Client(timeout=_ANSWER_S, trust_env=False) as client:
        answer = _chat(client, url, "greedy")
        phases_s, _ = await_phases(client, url)
    return plain({"start_s": start_s, "phases_s": phases_s, "chat": answer})  # type: ignore[no-any-return]


def eager_start(bench: Bench) -> dict[str, Any]:
    """Serve without CUDA graphs, so that vLLM warms up no kernel, and send each kind of request twice.

    The first kind after the start is `top_p`, whose kernel FlashInfer may still have to compile.
    """
    bench.stop()
    began = time.perf_counter()
    url = bench.url(enforce_eager=True)
    start_s, engines = time.perf_counter() - began, _engines()
    chats: dict[str, Any] = {}
    with httpx.Client(timeout=_ANSWER_S, trust_env=False) as client:
        for kind in sorted(KINDS, key=lambda kind: kind != "top_p"):
            say(f"eager: {kind}")
            chats[kind] = [_chat(client, url, kind), _chat(client, url, kind)]
    lost = len(engines - _engines())
    return plain({"start_s": start_s, "chats": chats, "lost_replicas": lost})  # type: ignore[no-any-return]


def lost_replica(bench: Bench) -> dict[str, Any]:
    """Kill the replica of the eager server with SIGKILL, and wait until a successor answers.

    Raises:
        ServerError: if there is not one replica, or no successor starts within five minutes.
    """
    url = bench.url(enforce_eager=True)
    if len(engines := _engines()) != 1:
        raise ServerError(f"{len(engines)} engine replicas run, and one is to be killed")
    [(replica, core)] = engines
    began = time.perf_counter()
    os.kill(replica, signal.SIGKILL)
    _wait(lambda: not psutil.pid_exists(core), "the engine core of the killed replica has not ended")
    core_ended_s = time.perf_counter() - began
    _wait(lambda: bool(_engines() - engines), "no successor of the killed replica has started")
    successor_s = time.perf_counter() - began
    with httpx.Client(timeout=_ANSWER_S, trust_env=False) as client:
        answer = _chat(client, url, "top_p")
        answered_s = time.perf_counter() - began
        phases_s, _ = await_phases(client, url)
    times = {"core_ended_s": core_ended_s, "successor_core_s": successor_s, "answered_s": answered_s}
    return plain({**times, "phases_s": phases_s, "chat": answer})  # type: ignore[no-any-return]


def _chat(client: httpx.Client, url: str, kind: str) -> dict[str, Any]:
    """Send a chat of a kind, and return its times, or how it failed: the other kinds are still to be sent."""
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": "Tell me about the sea."}],
        "max_tokens": 32,
        "ignore_eos": "response_format" not in KINDS[kind],
        "stream": True,
        **KINDS[kind],
    }
    began, times = time.perf_counter(), list[float]()
    try:
        with client.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
            if reply.status_code != 200:
                return {"error": f"{reply.status_code}: {reply.read().decode(errors='replace')[:300]}"}
            for line in reply.iter_lines():
                if line.startswith("event: error") or '"error"' in line[:16]:
                    return {"error": f"the stream ended with an error after {len(times)} events"}
                if line.startswith("data: {"):
                    times.append(time.perf_counter() - began)
    except httpx.HTTPError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    if not times:
        return {"error": "the stream had no event"}
    return {"first_token_s": times[0], "all_s": times[-1], "longest_gap_s": _longest_gap_s(times)}


def _longest_gap_s(times: list[float]) -> float:
    return max((after - before for before, after in pairwise(times)), default=0.0)


def _engines() -> set[tuple[int, int]]:
    """Return the process ids of the replica and the core of each engine of the proof's server."""
    return set(Processes(os.getpid()).snapshot().engines())


def _wait(condition: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + _BACK_S
    while not condition():
        if time.monotonic() > end:
            raise ServerError(f"{otherwise} within {_BACK_S:g} s")
        time.sleep(_LOOK_S)
