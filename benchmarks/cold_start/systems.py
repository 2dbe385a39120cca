"""The systems under comparison: how each is started with the same engine arguments."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cold_start.spans import ENVIRONMENT
from benchmarks.common.server_process import ServerProcess
from benchmarks.serving_overhead.servers import KINDS, Engine, Setup, environment, tideserve_config
from serve_app.cli.listening import free_port

_RAY_CPUS = 0.8
"""What is left to Ray and the ingress when engine replicas share the CPU cores."""
_LOGGING = {
    "version": 1,
    "formatters": {"unix": {"format": "%(created).3f %(message)s"}},
    "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "unix"}},
    "loggers": {"vllm": {"handlers": ["out"], "level": "INFO"}},
}
"""vLLM's log with Unix times, from which a traced start tells when the imports ended."""


@dataclass(frozen=True, slots=True)
class System:
    """One way to start engines."""

    name: str
    title: str
    ours: bool = True
    at_zero: bool = False
    """Whether the application runs, at zero replicas, when the clock starts."""
    zygote: bool = True
    kind: str = "tideserve"
    """Its name in the benchmark `serving_overhead`."""


SYSTEMS = {
    system.name: system
    for system in (
        System("tideserve", "Tideserve, from zero", at_zero=True),
        System("no-zygote", "Tideserve, from zero, zygote off", at_zero=True, zygote=False),
        System("fresh", "Tideserve, `tideserve run`"),
        System("vllm", "vllm serve", ours=False, kind="bare"),
        System("vllm-uniproc", "vllm serve, in-process executor", ours=False, kind="bare-uniproc"),
    )
}
"""`vllm-uniproc` runs the model in the engine core's process, as Tideserve does on the CPU."""


@dataclass(frozen=True, slots=True)
class Start:
    """What is started."""

    system: System
    engine: Engine
    kv_cache_bytes: int
    """On the CPU only."""
    replicas: int
    burst: int
    work: Path
    """A folder of its own, with a short path: Ray puts unix sockets below it."""
    log: Path

    def servers(self, traces: str | None) -> list[ServerProcess]:
        """Start it: one server of ours for all replicas, or one of vLLM's for each.

        Args:
            traces: Where spans go, if they are to be sent.
        """
        return [self._server(number, traces) for number in range(1 if self.system.ours else self.replicas)]

    @property
    def request_log(self) -> Path:
        """Where engine replicas of ours write their requests."""
        return self.work / "requests"

    @property
    def ray_logs(self) -> Path:
        """Where engine replicas of ours write their phases."""
        return self.work / "0" / "r" / "ray" / "session_latest" / "logs" / "serve"

    def _server(self, number: int, traces: str | None) -> ServerProcess:
        folder = self.work / str(number)
        folder.mkdir()
        config = self.work / "tideserve.yaml"
        kind = KINDS[self.system.kind]
        setup = Setup(self.engine, self.work, config if self.system.ours else None, {})
        port = free_port()
        command, env = kind.command(setup, port), environment(kind, setup, folder)
        env.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would win over `kv_cache_memory_bytes`
        if self.system.ours:
            config.write_text(
                json.dumps(self.configuration(traces), indent=1), encoding="utf-8"
            )  # JSON is YAML too
        else:
            command += self._vllm_arguments(traces)
            env |= self._vllm_environment(traces)
        log = self.log.with_name(f"{self.log.name}-{number}.log")
        return ServerProcess(self.system.name, command, env, port, log)

    def configuration(self, traces: str | None) -> dict[str, Any]:
        """Return the Serve configuration of one of ours."""
        document: dict[str, Any] = tideserve_config(self.engine)
        (application,) = document["applications"]
        (model,) = application["args"]["models"]
        if self.engine.device == "cpu":
            cores = (len(os.sched_getaffinity(0)) - _RAY_CPUS) / self.replicas
            model["cpus_per_replica"] = max(0.1, min(1.0, math.floor(round(cores * 10, 6)) / 10))
            model["kv_cache_memory_bytes"] = self.kv_cache_bytes
        if traces is not None:
            model["engine_args"] = {"otlp_traces_endpoint": traces}
            model["env"] = dict(ENVIRONMENT)
        application["args"] |= {
            "zygote": self.system.zygote,
            "request_log": {"directory": str(self.request_log)},
        }
        application["deployments"][0]["user_config"]["autoscaling"] = {
            self.engine.served_model_name: {
                "min_replicas": 0 if self.system.at_zero else self.replicas,
                "max_replicas": self.replicas,
                "queue_target_per_replica": math.ceil(self.burst / self.replicas),
                "downscale_to_zero_delay_s": 3600,
                "downscale_delay_s": 3600,
            }
        }
        return document

    def _vllm_arguments(self, traces: str | None) -> list[str]:
        arguments = []
        if self.engine.device == "cpu":
            arguments += ["--kv-cache-memory-bytes", str(self.kv_cache_bytes)]
        if traces is not None:
            arguments += ["--otlp-traces-endpoint", traces]
        return arguments

    def _vllm_environment(self, traces: str | None) -> Mapping[str, str]:
        if traces is None:
            return {}
        logging = self.work / "logging.json"
        logging.write_text(json.dumps(_LOGGING), encoding="utf-8")
        return {"VLLM_LOGGING_CONFIG_PATH": str(logging), **ENVIRONMENT}
