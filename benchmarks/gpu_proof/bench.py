"""The shared state of a proof's stages: options, the machine, the model, finished figures, a server."""

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.progress import say
from benchmarks.gpu_proof.options import Options
from benchmarks.gpu_proof.store import Store
from benchmarks.serving_overhead.servers import Engine
from loadtests.server import own_server

NAME = "proof"
"""The name under which the model is served."""
_CPU_KV_CACHE_BYTES = 256 << 20
_TARGETS = {
    "gpu": {"ttft_target_s": 0.2, "itl_target_s": 0.025},
    "cpu": {"ttft_target_s": 1.0, "itl_target_s": 0.1},
}
"""The GPU's are the product's defaults. With the CPU's, a rehearsal on two cores finds a capacity."""
_TOKENS = {"gpu": (512, 128), "cpu": (32, 8)}
"""Tokens of a prompt and an answer. The policy assumes the GPU's before it has seen any. With the CPU's, a
rehearsal has a hundred requests in some seconds."""


@dataclass(slots=True)
class Bench:
    """The proof under way."""

    options: Options
    store: Store
    machine: Mapping[str, Any]
    _running: ExitStack = field(default_factory=ExitStack)
    _served: str = ""
    """The configuration that is being served."""
    _url: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether this is a proof and no rehearsal."""
        return self.options.device == "gpu"

    @property
    def gpu(self) -> str:
        """The GPU's name as its driver has it; `CPU` in a rehearsal."""
        return str(self.machine["gpus"][0]["name"]) if self.machine["gpus"] else "CPU"

    @property
    def targets(self) -> Mapping[str, float]:
        """The knobs `ttft_target_s` and `itl_target_s` to measure by."""
        return _TARGETS[self.options.device]

    @property
    def tokens(self) -> tuple[int, int]:
        """The tokens of a prompt and of its answer, in every load that is not about their number."""
        return _TOKENS[self.options.device]

    def figures(self, stage: str) -> dict[str, Any]:
        """The figures of a stage that is done. Raises NeedError or CannotError if it is not."""
        return self.store.figures(stage)

    def seconds(self, usual: float, least: float) -> float:
        """A time of measurement, longer or shorter as `--minutes` says."""
        return max(least, usual * self.options.pace)

    def engine(self) -> Engine:
        """The engine arguments of the model, for every server."""
        place = self.figures("model")
        return Engine(
            model=place["model"],
            served_model_name=NAME,
            max_model_len=8192 if self.on_gpu else 2048,
            max_num_seqs=256 if self.on_gpu else 32,
            enforce_eager=not self.on_gpu,
            device=self.options.device,
            load_format=place["load_format"],
            kv_cache_bytes=_CPU_KV_CACHE_BYTES,
        )

    def url(self, knobs: Mapping[str, Any] | None = None, **model: Any) -> str:
        """Serve the model, and return the URL. The server that runs goes on if nothing changes.

        Args:
            knobs: In place of one fixed replica and the targets.
            model: Changes of the model's settings.

        Raises:
            CommandError: if it cannot be served.
        """
        document = self.engine().tideserve_config()
        application = document["applications"][0]
        if not self.on_gpu:
            model = {"cpus_per_replica": 0.4, **model}  # two fit beside the ingress on two cores
        application["args"]["models"][0] |= model
        user_config = application["deployments"][0]["user_config"]
        one = {"min_replicas": 1, "max_replicas": 1}
        user_config["autoscaling"] = {NAME: {**(one if knobs is None else knobs), **self.targets}}
        text = json.dumps(document, indent=1)
        if text != self._served:
            self.stop()
            folder = self.store.folder / "servers"
            folder.mkdir(exist_ok=True)
            file = folder / f"{len(list(folder.glob('*.yaml'))) + 1:02}.yaml"
            file.write_text(text, encoding="utf-8")  # JSON is YAML too
            self._url = self._running.enter_context(own_server(file, file.with_suffix(".log"), say))
            self._served = text
        return self._url

    def stop(self) -> None:
        """Stop the server that runs."""
        self._served = ""
        self._running.close()

    def cache(self, name: str) -> Path:
        """A folder of its own for vLLM's caches, empty at first."""
        return self.store.folder.resolve() / "caches" / name


def plain(value: Any) -> Any:
    """Return `value` for JSON: floats to five significant digits, and None for a float that is not finite."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
