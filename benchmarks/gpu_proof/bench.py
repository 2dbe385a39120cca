"""What the stages of one proof share: options, the machine, the model, finished figures, and a server."""

import json
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_proof.options import Options
from benchmarks.gpu_proof.outcome import CannotError, NeedError
from benchmarks.gpu_proof.store import Store
from loadtests.server import own_server

NAME = "proof"
"""The name under which the model is served."""
_GPU_CONTEXT = 8192
_CPU_CONTEXT = 2048
_CPU_KV_CACHE_BYTES = 256 << 20
_TARGETS = {
    "gpu": {"ttft_target_s": 0.2, "itl_target_s": 0.025},
    "cpu": {"ttft_target_s": 1.0, "itl_target_s": 0.1},
}
"""The GPU's are the product's defaults; the CPU's are such that a rehearsal on two cores finds a capacity."""


_TOKENS = {"gpu": (512, 128), "cpu": (32, 8)}
"""Of a prompt and an answer: the GPU's are what the policy assumes before it has seen any, and the CPU's such
that a rehearsal has a hundred requests in some seconds."""


@dataclass(slots=True)
class Bench:
    """The proof under way."""

    options: Options
    store: Store
    machine: Mapping[str, Any]
    say: Callable[[str], None]
    _running: ExitStack = field(default_factory=ExitStack)
    _served: str = ""
    """The configuration that is being served."""
    _url: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether this is a proof and no rehearsal."""
        return self.options.device == "gpu"

    @property
    def targets(self) -> Mapping[str, float]:
        """The knobs `ttft_target_s` and `itl_target_s` to measure by."""
        return _TARGETS[self.options.device]

    @property
    def tokens(self) -> tuple[int, int]:
        """The tokens of a prompt and of its answer, in every load that is not about their number."""
        return _TOKENS[self.options.device]

    def figures(self, stage: str) -> dict[str, Any]:
        """The figures of a stage that is done.

        Raises:
            NeedError: if it has not been measured yet, or failed.
            CannotError: if it cannot be measured here.
        """
        outcome = self.store.outcome(stage)
        if outcome is None:
            raise NeedError(f"it needs the stage {stage}, which has not been measured")
        if outcome.state == "done":
            return outcome.figures
        error = CannotError if outcome.state == "cannot" else NeedError
        raise error(f"it needs the stage {stage}, which ended with: {outcome.why}")

    def seconds(self, usual: float, least: float) -> float:
        """A time of measurement, longer or shorter as `--minutes` says."""
        return max(least, usual * self.options.pace)

    def model(self, **changes: Any) -> dict[str, Any]:
        """The model's settings in a configuration, with `changes`."""
        place = self.figures("model")
        settings: dict[str, Any] = {
            "name": NAME,
            "model": place["model"],
            "device": self.options.device,
            "accelerator_type": None,
            "load_format": place["load_format"],
            "dtype": "bfloat16",
            "max_model_len": _GPU_CONTEXT if self.on_gpu else _CPU_CONTEXT,
            "max_num_seqs": 256 if self.on_gpu else 32,
            "enforce_eager": not self.on_gpu,
        }
        if not self.on_gpu:
            settings["kv_cache_memory_bytes"] = _CPU_KV_CACHE_BYTES
            settings["cpus_per_replica"] = 0.4  # so that two fit beside the ingress on two cores
        return settings | changes

    def url(self, model: Mapping[str, Any], knobs: Mapping[str, Any] | None = None) -> str:
        """Serve `model`, and return the URL. What is served already goes on if nothing changes.

        Raises:
            CommandError: if it cannot be served.
        """
        one = {"min_replicas": 1, "max_replicas": 1, **self.targets}
        text = json.dumps(configuration(model, one if knobs is None else knobs), indent=1)
        if text != self._served:
            self.stop()
            folder = self.store.folder / "servers"
            folder.mkdir(exist_ok=True)
            number = len(list(folder.glob("*.yaml"))) + 1
            file = folder / f"{number:02}.yaml"
            file.write_text(text, encoding="utf-8")  # JSON is YAML too
            log = file.with_suffix(".log")
            self._url = self._running.enter_context(own_server(file, log, self.say))
            self._served = text
        return self._url

    def stop(self) -> None:
        """Stop what is being served."""
        self._served = ""
        self._running.close()

    def cache(self, name: str) -> Path:
        """A folder of its own for vLLM's caches, empty at first."""
        return self.store.folder.resolve() / "caches" / name


def configuration(model: Mapping[str, Any], knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Serve configuration with one model and one ingress replica."""
    user_config = {"autoscaling": {model["name"]: knobs}, "ingress": {"max_replicas": 1}}
    application = {
        "name": "tideserve",
        "route_prefix": "/",
        "import_path": "serve_app.app:build",
        "autoscaling_policy": {"policy_function": "serve_app.controller.serve_policy:ServePolicy"},
        "args": {"models": [dict(model)]},
        "deployments": [{"name": "Ingress", "user_config": user_config}],
    }
    return {"applications": [application]}


def plain(value: Any) -> Any:
    """Return `value` for JSON: floats to five significant digits, and None for what is not finite."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
