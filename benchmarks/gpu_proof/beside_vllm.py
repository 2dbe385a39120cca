"""Stages `cold-start` and `overhead`: Tideserve beside bare vLLM."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from benchmarks.cold_start.measure import await_phases
from benchmarks.common.progress import say
from benchmarks.common.server_process import HOST
from benchmarks.gpu_proof.bench import Bench, plain
from benchmarks.gpu_proof.step_time import first_token_s
from benchmarks.serving_overhead.load import Level
from benchmarks.serving_overhead.rounds import Plan, run
from benchmarks.serving_overhead.servers import Start
from serve_app.cli.progress import ask_ready

_START_S = 900.0
_ZYGOTE_S = 120.0
_LOOK_S = 1.0
_LEVELS = {"gpu": (1, 32, 128, 256), "cpu": (1, 8)}
_REQUESTS = {1: 16, 8: 4, 32: 6, 128: 4, 256: 4}
"""Requests of one worker in a round, at the usual pace."""


def cold_start(bench: Bench) -> dict[str, Any]:
    """Measure first and second starts, with an empty and a filled compile cache; eager ones have none.

    A start of ours is the wait of a request that comes while the application runs without replicas. A start
    of vLLM's counts from the start of its server's process.
    """
    ways = {"graphs": False, "eager": True} if bench.on_gpu else {"eager": True}
    figures: dict[str, Any] = {}
    for way, eager in ways.items():
        for system, measure in (("tideserve", _ours), ("vllm serve", _bare)):
            cache = bench.cache(f"{system.split()[0]}-{way}")
            for which in ("first",) if eager else ("first", "second"):
                say(f"{system}, {way}, {which} start")
                figures.setdefault(system, {}).setdefault(way, {})[which] = measure(bench, eager, cache)
    if not bench.on_gpu:
        figures["left out"] = "starts with CUDA graphs: this is a CPU"
    return figures


def _ours(bench: Bench, eager: bool, cache: Path) -> dict[str, Any]:
    bench.stop()  # A server that goes on would have learned from the start before.
    knobs = {"min_replicas": 0, "max_replicas": 1}
    url = bench.url(knobs, enforce_eager=eager, env={"VLLM_CACHE_ROOT": str(cache)})
    end = time.monotonic() + _ZYGOTE_S
    while not any(one.get("warm_node") for one in ask_ready(url)[1].values()) and time.monotonic() < end:
        time.sleep(_LOOK_S)  # until the node's zygote has imported
    first_s, warm_s = first_token_s(url, _START_S), first_token_s(url, _START_S)
    with httpx.Client(timeout=_START_S, trust_env=False) as client:
        phases_s, _ = await_phases(client, url)
    bench.stop()
    return {"first_token_s": first_s, "warm_first_token_s": warm_s, "phases_s": plain(phases_s)}


def _bare(bench: Bench, eager: bool, cache: Path) -> dict[str, Any]:
    with TemporaryDirectory(prefix="gp-", dir="/tmp") as work:
        engine = replace(bench.engine(), enforce_eager=eager)
        start = Start("bare", engine, Path(work) / "bare", env={"VLLM_CACHE_ROOT": str(cache)})
        began = time.perf_counter()
        server = start.server(bench.store.folder / "servers" / f"vllm-serve-{cache.name}.log")
        try:
            server.wait_ready(start.ready_path, _START_S)
            first_token_s(f"http://{HOST}:{server.port}", _START_S)
            return {"first_token_s": plain(time.perf_counter() - began)}
        finally:
            server.stop()


def overhead(bench: Bench) -> dict[str, Any]:
    """Measure throughput and latencies up to where the front end is the limit, in one round."""
    bench.stop()
    levels = [
        Level(at_once, max(2, round(_REQUESTS[at_once] * bench.options.pace)), warmup=2)
        for at_once in _LEVELS[bench.options.device]
    ]
    servers = ["bare" if bench.on_gpu else "bare-uniproc", "tideserve"]
    out = bench.store.folder / "overhead"
    out.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="gp-", dir="/tmp", ignore_cleanup_errors=True) as work:
        results = run(Plan(servers, bench.engine(), levels, 1, 2.0), Path(work), out.resolve())
    return {"servers": servers, **plain(asdict(results))}
