"""Stage `overhead`: throughput and latencies beside bare vLLM, up to where the front end is the limit."""

import json
import subprocess
import sys
from typing import Any

from benchmarks import REPOSITORY
from benchmarks.gpu_proof.bench import Bench
from benchmarks.gpu_proof.cold_start import engine_of

_LEVELS = {"gpu": (1, 32, 128, 256), "cpu": (1, 8)}
_REQUESTS = {1: 16, 8: 4, 32: 6, 128: 4, 256: 4}
"""Of one worker in a round, at the usual pace."""
_LIMIT_S = 1800.0


def overhead(bench: Bench) -> dict[str, Any]:
    """Run the serving-overhead benchmark with this model.

    Raises:
        RuntimeError: with the end of its output, if it fails.
    """
    bench.stop()
    engine = engine_of(bench, eager=not bench.on_gpu)
    levels = _LEVELS[bench.options.device]
    requests = [max(2, round(_REQUESTS[level] * bench.options.pace)) for level in levels]
    servers = "bare,tideserve" if bench.on_gpu else "bare-uniproc,tideserve"
    out = bench.store.folder / "overhead"
    command = [
        *(sys.executable, "-m", "benchmarks.serving_overhead", "--servers", servers, "--rounds", "1"),
        *("--concurrency", ",".join(map(str, levels)), "--requests", ",".join(map(str, requests))),
        *("--warmup", "2", "--settle", "2", "--start-timeout", "900", "--out", str(out.resolve())),
        *("--device", engine.device, "--enforce-eager" if engine.enforce_eager else "--no-enforce-eager"),
        *(part for part in engine.cli() if part != "--enforce-eager"),
    ]
    with (bench.store.folder / "overhead.log").open("w", encoding="utf-8") as log:
        done = subprocess.run(
            command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT, timeout=_LIMIT_S, check=False
        )
    if done.returncode != 0:
        said = (bench.store.folder / "overhead.log").read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"the benchmark ended with status {done.returncode}: {said.strip()[-600:]}")
    results: dict[str, Any] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return {
        "servers": servers.split(","),
        "measurements": results["measurements"],
        "starts": results["starts"],
    }
