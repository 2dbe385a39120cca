"""Launcher of Ray Serve LLM (`ray.serve.llm.build_openai_app`) on CPU, on a Ray cluster of its own.

    python -m benchmarks.serving_overhead.ray_llm --model PATH --served-model-name NAME ... --port PORT

Which mode it runs in is decided by environment variables, read when Ray starts: none for the
default mode, DIRECT_STREAMING for direct streaming. `--check` only imports and configures.
"""

import argparse
import importlib.util
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECT_STREAMING = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
}
"""The switches of Ray's guides to direct streaming and to high throughput on Serve."""

LOGICAL_CPUS = 4
"""Ray's own bookkeeping, not cores: 2 for the engine replica, 1 for the ingress, 1 spare."""

_PYARROW_FS = '''\
"""Stands in for pyarrow.fs, whose classes Ray Serve LLM names at import and uses for remote models."""


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    return type(name, (), {})
'''


@dataclass(frozen=True, slots=True)
class Shims:
    """What was put in the way of Ray Serve LLM's missing dependencies."""

    env: dict[str, str]
    notes: tuple[str, ...]


def shims(folder: Path) -> Shims:
    """Stand-ins, below `folder`, for what `import ray.serve.llm` needs and this environment lacks.

    Only pyarrow: it comes with `ray[llm]`, is imported at the top of a module about cloud storage,
    and no request ever reaches it. Put a real one on PYTHONPATH and the stand-in is not used.
    """
    if importlib.util.find_spec("pyarrow") is not None:
        return Shims({}, ())
    package = folder / "pyarrow"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text('"""Stands in for pyarrow; see benchmarks/serving_overhead."""\n')
    (package / "fs.py").write_text(_PYARROW_FS)
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(folder))))
    return Shims(
        {
            "PYTHONPATH": path,
            "RAY_DISABLE_CUSTOM_ARROW_DATA_SERIALIZATION": "1",  # Ray would register pyarrow.Table.
            "RAY_DISABLE_CUSTOM_ARROW_JSON_OPTIONS_SERIALIZATION": "1",
        },
        ("pyarrow is missing; an empty stand-in lets `import ray.serve.llm` pass (it serves remote models)",),
    )


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ray_llm", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--check", action="store_true")
    return parser.parse_args(argv)


def configure(arguments: argparse.Namespace) -> Any:
    """One replica of the model; everything else as Ray Serve LLM has it by default."""
    from ray.serve.llm import LLMConfig  # noqa: PLC0415 - takes seconds, and may be impossible

    return LLMConfig.model_validate(
        {
            "model_loading_config": {
                "model_id": arguments.served_model_name,
                "model_source": arguments.model,
            },
            "accelerator_config": {"kind": "cpu"},
            "engine_kwargs": {
                "max_model_len": arguments.max_model_len,
                "max_num_seqs": arguments.max_num_seqs,
                "dtype": arguments.dtype,
                "enforce_eager": arguments.enforce_eager,
                "load_format": arguments.load_format,
            },
            "deployment_config": {"autoscaling_config": {"min_replicas": 1, "max_replicas": 1}},
        }
    )


def serve_until_signal(config: Any, port: int) -> None:
    """Start a local Ray cluster, run the application, wait for SIGTERM, shut the cluster down."""
    import ray  # noqa: PLC0415
    from ray import serve  # noqa: PLC0415
    from ray.serve.llm import build_openai_app  # noqa: PLC0415

    # Before build_openai_app, which would start a cluster with settings of its own.
    ray.init(address="local", num_cpus=LOGICAL_CPUS, _temp_dir=os.environ["RAY_TMPDIR"])
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build_openai_app({"llm_configs": [config]}), name="llm", route_prefix="/")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda signum, frame: stop.set())  # ray.init() sets a handler too.
    print("ray_llm: the application is running", flush=True)
    stop.wait()
    ray.shutdown()


def main(argv: list[str]) -> int:
    """Configure, and unless only checking, serve."""
    arguments = _arguments(argv)
    config = configure(arguments)
    if not arguments.check:
        serve_until_signal(config, arguments.port)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
