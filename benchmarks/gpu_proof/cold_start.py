"""Stage `cold-start`: from a request at zero to its first token, by phase, beside bare `vllm serve`."""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from benchmarks.common.server_process import HOST
from benchmarks.gpu_proof.bench import NAME, Bench, plain
from benchmarks.gpu_proof.first_token import first_token_s
from benchmarks.serving_overhead.servers import KINDS, Engine, Setup, start
from replay.capacity.server import Server
from serve_app.cli.progress import ask_ready

_START_S = 900.0
_ZYGOTE_S = 120.0
_REPORT_S = 30.0
_LOOK_S = 1.0
_AT_ZERO = {"min_replicas": 0, "max_replicas": 1}


def cold_start(bench: Bench) -> dict[str, Any]:
    """Measure first and second starts, with an empty and a filled compile cache; eager ones have none.

    Each of ours is the wait of a request that comes while the application runs without replicas; each of
    vLLM's is from the start of its server's process.
    """
    ways = {"graphs": False, "eager": True} if bench.on_gpu else {"eager": True}
    figures: dict[str, Any] = {}
    for way, eager in ways.items():
        for system, measure in (("tideserve", _ours), ("vllm serve", _bare)):
            cache = bench.cache(f"{system.split()[0]}-{way}")
            for which in ("first",) if eager else ("first", "second"):
                bench.say(f"{system}, {way}, {which} start")
                figures.setdefault(system, {}).setdefault(way, {})[which] = measure(bench, eager, cache)
    if not bench.on_gpu:
        figures["left out"] = "starts with CUDA graphs: this is a CPU"
    return figures


def _ours(bench: Bench, eager: bool, cache: Path) -> dict[str, Any]:
    bench.stop()  # A server that goes on would have learned from the start before.
    environment = {"VLLM_CACHE_ROOT": str(cache)}
    url = bench.url(bench.model(enforce_eager=eager, env=environment), {**_AT_ZERO, **bench.targets})
    _wait_for_zygote(url)
    waited_s = first_token_s(url, _START_S)
    again_s = first_token_s(url, _START_S)
    known = asyncio.run(_phases(url))
    bench.stop()
    return {"first_token_s": plain(waited_s), "warm_first_token_s": plain(again_s), **known}


async def _phases(url: str) -> dict[str, Any]:
    """The start's phases, once the policy has seen the replica ready."""
    async with aiohttp.ClientSession() as session:
        end = time.monotonic() + _REPORT_S
        while (known := await Server(session, url).cold_start(NAME)) is None:
            if time.monotonic() > end:
                return {}
            await asyncio.sleep(_LOOK_S)
    return {"process_to_ready_s": plain(known.cold_start_s), "phases_s": plain(known.phases_s)}


def _wait_for_zygote(url: str) -> None:
    """Wait until the node's zygote has imported what it forks."""
    end = time.monotonic() + _ZYGOTE_S
    while not ask_ready(url)[1].get(NAME, {}).get("warm_node") and time.monotonic() < end:
        time.sleep(_LOOK_S)


def _bare(bench: Bench, eager: bool, cache: Path) -> dict[str, Any]:
    with TemporaryDirectory(prefix="gp-", dir="/tmp") as work:  # Ray puts unix sockets below it
        setup = Setup(engine_of(bench, eager), Path(work), None, {"": {"VLLM_CACHE_ROOT": str(cache)}})
        log = bench.store.folder / "servers" / f"vllm-serve-{cache.name}.log"
        began = time.perf_counter()
        server = start(KINDS["bare"], setup, Path(work) / "bare", log)
        try:
            server.wait_ready("/health", _START_S)
            ready_s = time.perf_counter() - began
            first_token_s(f"http://{HOST}:{server.port}", _START_S)
            return {"first_token_s": plain(time.perf_counter() - began), "healthy_s": plain(ready_s)}
        finally:
            server.stop()


def engine_of(bench: Bench, eager: bool) -> Engine:
    """Return the engine arguments of `bench.model()` for other servers."""
    model = bench.model()
    return Engine(
        model=Path(model["model"]) if Path(model["model"]).exists() else model["model"],
        served_model_name=NAME,
        max_model_len=model["max_model_len"],
        max_num_seqs=model["max_num_seqs"],
        dtype=model["dtype"],
        enforce_eager=eager,
        kv_cache_gib=1,
        device=bench.options.device,
        load_format=bench.figures("model")["load_format"],
    )
