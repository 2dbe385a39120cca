"""The servers under comparison, started with the same engine arguments."""

import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.server_process import HOST, ServerProcess
from benchmarks.serving_overhead import ray_llm
from serve_app.cli.listening import free_port, free_ports

TRACED, WATCHED = "traced", "watched"
OPEN_PAGES = 5
"""The pages that `WATCHED` has open."""
COLLECTOR = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Names the collector of `TRACED`."""
TITLES = {
    "bare": "bare vLLM",
    "bare-uniproc": "bare vLLM, in-process executor",
    "tideserve": "Tideserve",
    TRACED: "Tideserve, traces of 10 %",
    WATCHED: f"Tideserve, {OPEN_PAGES} pages open",
    "ray-llm": "Ray Serve LLM",
    "ray-llm-direct": "Ray Serve LLM, direct streaming",
}
"""`bare-uniproc` runs the model in the engine core's process, as Tideserve does on the CPU and vLLM's own
default does not."""
_UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine arguments, the same for every server."""

    model: Path | str
    """A folder, or a Hugging Face id."""
    served_model_name: str = "tideserve-tiny"
    max_model_len: int = 2048
    max_num_seqs: int = 64
    dtype: str = "bfloat16"
    enforce_eager: bool = True
    device: str = "cpu"
    load_format: str = "auto"
    kv_cache_bytes: int = 1 << 30
    """On the CPU only. On a GPU all servers take as much as vLLM finds free."""

    def cli(self) -> list[str]:
        """As arguments of vLLM's own command line."""
        return [
            *("--model", str(self.model), "--served-model-name", self.served_model_name),
            *("--max-model-len", str(self.max_model_len), "--max-num-seqs", str(self.max_num_seqs)),
            *("--dtype", self.dtype, "--load-format", self.load_format),
            *(["--enforce-eager"] if self.enforce_eager else []),
            *(["--kv-cache-memory-bytes", str(self.kv_cache_bytes)] if self.device == "cpu" else []),
        ]

    def tideserve_config(self, traced: bool = False) -> dict[str, Any]:
        """A Serve configuration of one fixed replica with these arguments, and our defaults otherwise."""
        model: dict[str, object] = {
            "name": self.served_model_name,
            "model": str(self.model),
            "device": self.device,
            "accelerator_type": None,
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "enforce_eager": self.enforce_eager,
            "load_format": self.load_format,
        }
        if self.device == "cpu":
            model["kv_cache_memory_bytes"] = self.kv_cache_bytes
        knobs = {self.served_model_name: {"min_replicas": 1, "max_replicas": 1}}
        user_config = {"autoscaling": knobs, "ingress": {"max_replicas": 1}}
        application = {
            "name": "tideserve",
            "route_prefix": "/",
            "import_path": "serve_app.app:build",
            "autoscaling_policy": {"policy_function": "serve_app.controller.serve_policy:ServePolicy"},
            "args": {"models": [model], "telemetry": {"traces": {"enabled": traced}}},
            "deployments": [{"name": "Ingress", "user_config": user_config}],
        }
        return {"applications": [application]}


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a server."""

    name: str
    engine: Engine
    work: Path
    """A new folder with a short path: Ray puts unix sockets below it (at most 107 bytes)."""
    config: Mapping[str, Any] | None = None
    """Tideserve's configuration, in place of `Engine.tideserve_config`."""
    env: Mapping[str, str] = field(default_factory=dict)

    def command(self, port: int) -> list[str]:
        """The command line of the server."""
        if self._is_tideserve:
            return [sys.executable, "-m", "serve_app.cli.main", "run", str(self._file), "--port", str(port)]
        if self.name.startswith("ray-llm"):
            return [sys.executable, "-m", ray_llm.__name__, *self.engine.cli(), "--port", str(port)]
        module = "vllm.entrypoints.openai.api_server"
        command = [sys.executable, "-m", module, *self.engine.cli(), "--host", HOST, "--port", str(port)]
        return command + (["--distributed-executor-backend", _UNIPROC] if self.name == "bare-uniproc" else [])

    def environment(self) -> dict[str, str]:
        """The environment of the server. RAY_* and VLLM_* of the caller's shell are left out."""
        outer = ("RAY_", "RAYLLM_", "VLLM_")
        found = {key: value for key, value in os.environ.items() if not key.startswith(outer)}
        found |= {"TMPDIR": str(self.work), "VLLM_NO_USAGE_STATS": "1"}
        if Path(self.engine.model).exists():
            found["HF_HUB_OFFLINE"] = "1"
        if self.name == "bare-uniproc":
            found["OMP_NUM_THREADS"] = "1"  # Ray gives this to a replica with one CPU.
        if not self.name.startswith("bare"):
            found |= cluster_environment(self.work)
        if self.name.startswith("ray-llm"):
            found |= ray_llm.stand_ins(self.work / "stand-ins")
        if self.name == "ray-llm-direct":
            found |= ray_llm.DIRECT_STREAMING
        return {**found, **self.env}

    def server(self, log: Path) -> ServerProcess:
        """Start the server on a free port."""
        self.work.mkdir(parents=True)
        if self._is_tideserve:
            config = self.config or self.engine.tideserve_config(self.name == TRACED)
            self._file.write_text(json.dumps(config, indent=1), encoding="utf-8")  # JSON is YAML too
        port = free_port()
        return ServerProcess(self.name, self.command(port), self.environment(), port, log)

    @property
    def ready_path(self) -> str:
        """The path that answers 200 once the server is up."""
        return "/ready" if self._is_tideserve else "/health" if self.name.startswith("bare") else "/v1/models"

    @property
    def _is_tideserve(self) -> bool:
        return self.name in ("tideserve", TRACED, WATCHED)

    @property
    def _file(self) -> Path:
        return self.work / "tideserve.yaml"


def cluster_environment(folder: Path) -> dict[str, str]:
    """A Ray cluster of its own: own folder, own ports, own token, no usage reports."""
    metrics, stats, http, grpc = free_ports(4)
    haproxy = {
        "CONFIG_FILE_LOC": "haproxy.cfg", "SOCKET_PATH": "admin.sock", "METRICS_SOCKET_PATH": "metrics.sock",
        "SERVER_STATE_BASE": ".", "SERVER_STATE_FILE": "server-state",
    }  # fmt: skip
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder / "r"),
        **{f"RAY_SERVE_HAPROXY_{key}": str(folder / "h" / file) for key, file in haproxy.items()},
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(http),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(http + 200),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(grpc),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(grpc + 200),
    }
