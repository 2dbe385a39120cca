"""The systems: vLLM's own API server and Tideserve, with the stub below each."""

import json
from dataclasses import replace
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.chaos.roles import ENGINE_REPLICA
from benchmarks.serving_overhead.servers import KINDS, Engine, Kind, Setup, tideserve_config

STUB = "benchmarks.saturation.stub_core.StubExecutor"
MOST_TOKENS = 60_000
"""Of a stream, at most: one that lasts for minutes. The stub core has no use for positions."""
FRONT_ENDS = {"vllm": "vLLM's own front end", "tideserve": ENGINE_REPLICA}
"""The process that tokenizes, detokenizes and makes the events, by system."""


def engine(model: Path, streams: int) -> Engine:
    """What both systems give to vLLM."""
    return Engine(
        model=model,
        served_model_name="tideserve-tiny",
        max_model_len=MOST_TOKENS + 512,
        max_num_seqs=streams + 16,
        dtype="bfloat16",
        enforce_eager=True,
        kv_cache_gib=1,
    )


def setup(given: Engine, work: Path) -> Setup:
    """Write Tideserve's configuration, and return what a start needs."""
    config = tideserve_config(given)
    model = config["applications"][0]["args"]["models"][0]  # type: ignore[index]
    model["engine_args"] = {"distributed_executor_backend": STUB}
    model["max_ongoing_requests"] = given.max_num_seqs
    path = work / "tideserve.yaml"
    path.write_text(json.dumps(config, indent=2))  # JSON is YAML too
    env = {
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
        "PYTHONPATH": str(REPOSITORY),  # for the core's process to import the stub
    }
    return Setup(given, work, path, {"": env})


def _vllm_command(setup: Setup, port: int) -> list[str]:
    return [*KINDS["bare-uniproc"].command(setup, port)[:-1], STUB]


SYSTEMS: dict[str, Kind] = {
    "vllm": replace(KINDS["bare-uniproc"], name="vllm", command=_vllm_command),
    "tideserve": KINDS["tideserve"],
}
