"""`tideserve check` on a machine with the packages for GPUs, and on machines that lack something."""

import os
from pathlib import Path

import pytest
import yaml

from serve_app.cli.application_checks import IMPORT_PATH, POLICY_FUNCTION
from tests.gpu_stack.conftest import Stack


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    app = {
        "name": "tideserve",
        "import_path": IMPORT_PATH,
        "autoscaling_policy": {"policy_function": POLICY_FUNCTION},
        "args": {"models": [{"name": "tide", "device": "gpu", "accelerator_type": None}]},
        "deployments": [
            {"name": "Ingress", "user_config": {"ingress": {"min_replicas": 1, "max_replicas": 1}}}
        ],
    }
    path.write_text(yaml.safe_dump({"applications": [app]}))
    return path


def check(stack: Stack, config: Path, **variables: str) -> list[str]:
    """Return the lines about the machine."""
    done = stack.run("tideserve", "check", str(config), **variables)
    assert done.returncode == 0, done.stderr
    said = "this machine cannot serve it yet: "
    return [line.removeprefix(said) for line in done.stdout.splitlines() if line.startswith(said)]


def test_machine_with_driver_gpu_and_packages_lacks_nothing(stack: Stack, config: Path) -> None:
    assert check(stack, config) == []


def test_missing_driver_is_one_sentence(stack: Stack, config: Path) -> None:
    (line,) = check(stack, config, LD_LIBRARY_PATH="")
    assert "no NVIDIA driver answers: run `sudo apt install nvidia-open`" in line


def test_old_driver_is_one_sentence(stack: Stack, config: Path) -> None:
    (line,) = check(stack, config, FAKE_DRIVER="550.54.15")
    assert "the NVIDIA driver is 550.54.15, and CUDA 13 needs 580" in line


def test_missing_compiler_is_one_sentence(stack: Stack, config: Path) -> None:
    (line,) = check(stack, config, CUDA_HOME="/usr/local/no-cuda")
    assert (
        "/usr/local/no-cuda/bin/nvcc is missing, with which FlashInfer compiles: run `make setup-gpu`" in line
    )
    missing = check(stack, config, PATH="/nowhere")
    assert [line.strip().split(",")[0] for line in missing] == ["no C++ compiler (`c++`) is in PATH"]


def test_full_gpu_names_its_process(stack: Stack, config: Path) -> None:
    (line,) = check(stack, config, FAKE_FREE_GIB="3", FAKE_HOLDER=str(os.getpid()))
    assert "GPU 0 (NVIDIA H100 80GB HBM3) has 3.0 of 80.0 GiB free, and an engine takes 72.0" in line
    assert f"process {os.getpid()} (" in line
    assert "holds 77.0 GiB" in line


def test_run_starts_nothing_on_a_machine_that_lacks_something(stack: Stack, config: Path) -> None:
    done = stack.run("tideserve", "run", str(config), "--port", "18999", FAKE_DRIVER="550.54.15")
    assert done.returncode == 1
    assert "the NVIDIA driver is 550.54.15" in done.stderr
    assert not list(Path(stack.variables["RAY_TMPDIR"]).glob("ray/session_*"))
