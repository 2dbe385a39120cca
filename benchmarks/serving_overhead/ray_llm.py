"""Launcher of Ray Serve LLM (`ray.serve.llm.build_openai_app`) on the CPU, on a Ray cluster of its own.

    python -m benchmarks.serving_overhead.ray_llm --model PATH --served-model-name NAME ... --port PORT

Environment variables, read when Ray starts, decide its mode: none for the default, DIRECT_STREAMING for
direct streaming.
"""

import argparse
import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

DIRECT_STREAMING = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
}
"""The switches of Ray's guides to direct streaming and to high throughput on Serve."""

_LOGICAL_CPUS = 4
"""Ray's own bookkeeping, not cores: 2 for the engine replica, 1 for the ingress, 1 spare."""
_PYARROW_FS = '''\
"""Stands in for pyarrow.fs, whose classes Ray Serve LLM names at import and uses for remote models."""


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    return type(name, (), {})
'''


def stand_ins(folder: Path) -> dict[str, str]:
    """The environment that lets `import ray.serve.llm` pass, with stand-ins in `folder`.

    Only pyarrow: it comes with `ray[llm]`, is imported at the top of a module about cloud storage, and no
    request ever reaches it. Where a real one is installed, nothing is needed.
    """
    if importlib.util.find_spec("pyarrow") is not None:
        return {}
    package = folder / "pyarrow"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text('"""Stands in for pyarrow."""\n')
    (package / "fs.py").write_text(_PYARROW_FS)
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(folder)))),
        "RAY_DISABLE_CUSTOM_ARROW_DATA_SERIALIZATION": "1",  # Ray would register pyarrow.Table.
        "RAY_DISABLE_CUSTOM_ARROW_JSON_OPTIONS_SERIALIZATION": "1",
    }


def _parse(argv: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="ray_llm", description=__doc__)
    for name in ("--model", "--served-model-name", "--dtype", "--load-format"):
        parser.add_argument(name, required=True)
    for name in ("--max-model-len", "--max-num-seqs", "--port"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--kv-cache-memory-bytes", type=int)
    parser.add_argument("--enforce-eager", action="store_true")
    return vars(parser.parse_args(argv))


def main(argv: list[str]) -> int:
    """Serve one replica until a signal. The rest is as Ray Serve LLM has it."""
    engine = _parse(argv)
    port = engine.pop("port")
    from ray.serve.llm import LLMConfig  # noqa: PLC0415 - takes seconds

    loading = {"model_id": engine.pop("served_model_name"), "model_source": engine.pop("model")}
    document = {
        "model_loading_config": loading,
        "accelerator_config": {"kind": "cpu"},
        "engine_kwargs": engine,
        "deployment_config": {"autoscaling_config": {"min_replicas": 1, "max_replicas": 1}},
    }
    _serve_until_signal(LLMConfig.model_validate(document), port)
    return 0


def _serve_until_signal(config: Any, port: int) -> None:
    import ray  # noqa: PLC0415
    from ray import serve  # noqa: PLC0415
    from ray.serve.llm import build_openai_app  # noqa: PLC0415

    # Before build_openai_app, which would start a cluster with settings of its own.
    ray.init(address="local", num_cpus=_LOGICAL_CPUS, _temp_dir=os.environ["RAY_TMPDIR"])
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build_openai_app({"llm_configs": [config]}), name="llm", route_prefix="/")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda signum, frame: stop.set())  # ray.init() sets a handler too.
    print("ray_llm: the application is running", flush=True)
    stop.wait()
    ray.shutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
