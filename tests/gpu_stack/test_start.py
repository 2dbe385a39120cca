"""The README's command for GPUs, on a machine that has everything but a device."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from serve_app.cli.listening import free_port
from tests.gpu_stack.conftest import ROOT, Stack

_START_S = 1500.0
"""Ray, vLLM's imports and three starts of an engine, on two slow cores."""


def ready(port: int) -> dict[str, Any]:
    """Return the model's entry in `/ready`; {} while nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            body = answer.read()
    except urllib.error.HTTPError as error:
        body = error.read()
    except OSError:
        return {}
    try:
        found: dict[str, Any] = json.loads(body)["models"]["llm"]
    except (ValueError, KeyError):  # HAProxy's own page
        return {}
    return found


def test_start_comes_as_far_as_the_device(stack: Stack, tmp_path: Path) -> None:
    document = yaml.safe_load((ROOT / "config/serve.gpu.yaml").read_text())
    (app,) = document["applications"]
    model = {"name": "llm", "device": "gpu", "accelerator_type": "H100", "max_model_len": 512}
    app["args"]["models"] = [model]  # the embedded one: there is no hub here
    app["deployments"][0]["user_config"]["ingress"]["max_replicas"] = 1
    app["deployments"][0]["user_config"]["autoscaling"] = {"llm": {"min_replicas": 1, "max_replicas": 1}}
    config, port = tmp_path / "serve.yaml", free_port()
    config.write_text(yaml.safe_dump(document))
    output = tmp_path / "output"

    with output.open("w") as file:
        server = subprocess.Popen(
            [stack.bin / "tideserve", "run", config, "--port", str(port), "--verbose"],
            env=stack.variables,
            cwd=ROOT,
            stdout=file,
            stderr=file,
        )
    try:
        deadline, entry = time.monotonic() + _START_S, dict[str, Any]()
        while entry.get("state") != "failed":
            assert server.poll() is None, output.read_text()[-8000:]
            assert time.monotonic() < deadline, (entry, output.read_text()[-8000:])
            time.sleep(1)
            entry = ready(port)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)

    # It had its GPU, the memory on it, and vLLM's configuration. Then its core asked for the device.
    assert entry["reason"].startswith("weights_and_kv_cache: ")
    (log,) = [part for part in entry["reason"].split("log: ") if part.startswith("/")]
    said = Path(log.split(")")[0]).read_text(errors="replace")
    assert "No CUDA GPUs are available" in said or "no device" in said, said[-8000:]
    assert os.path.commonpath([log, stack.variables["RAY_TMPDIR"]]) == stack.variables["RAY_TMPDIR"]
    assert stack.initialisers()
