"""The sentences about what a machine lacks for engines on GPUs, from facts of imagined machines."""

import re
from pathlib import Path
from typing import Any

import pytest

from serve_app.cli.gpu_machine import CACHE_BYTES, CUDA, OLDEST_DRIVER, SHARED_BYTES, Machine, missing_pieces
from serve_app.gpus import GIB, Driver, Gpu
from serve_app.settings.tree import ModelSettings

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
H100 = Gpu("GPU 0 (NVIDIA H100 80GB HBM3)", "H100", 80 * GIB, 79 * GIB)
FULL = H100._replace(free_bytes=3 * GIB, holders="process 42 (VLLM::EngineCore) holds 76.0 GiB")
READY = Machine(
    has_packages=True,
    driver=Driver("580.65.06", (H100,)),
    toolkit="/venv/nvidia/cu13",
    nvcc=13,
    links=True,
    compiler=True,
    header="",
    to_download={"llm": 16 * 10**9},
    weights=("/root/.cache/huggingface/hub", 100 * 10**9),
    caches=("/root", 100 * 10**9),
    shared_bytes=SHARED_BYTES,
)
MODEL: dict[str, Any] = {"name": "llm", "model": "org/llm", "accelerator_type": None}


def sentences(machine: Machine, **model: Any) -> list[str]:
    return list(missing_pieces([ModelSettings.model_validate(MODEL | model)], machine))


@pytest.mark.parametrize(
    ("lacks", "model", "said", "mend"),
    [
        ({"has_packages": False}, {}, "vLLM for GPUs is not installed", "`make setup-gpu`"),
        ({"nvcc": None}, {}, "/venv/nvidia/cu13/bin/nvcc is missing", "`make setup-gpu`"),
        ({"nvcc": 12}, {}, "is of CUDA 12, and torch is built for CUDA 13", "`unset CUDA_HOME`"),
        ({"links": False}, {}, "/venv/nvidia/cu13/lib64/libcudart.so is missing", "`make setup-gpu`"),
        ({"compiler": False}, {}, "no C++ compiler", "`sudo apt install g++`"),
        ({"header": "/usr/include/python3.11/Python.h"}, {}, "Python.h is missing", "install python3-dev`"),
        ({"driver": None}, {}, "no NVIDIA driver answers", "`sudo apt install nvidia-open`"),
        (
            {"driver": Driver("550.54.15", (H100,))},
            {},
            "the NVIDIA driver is 550.54.15, and CUDA 13 needs 580",
            "nvidia-open`",
        ),
        (
            {"driver": Driver("580.65.06", (FULL,))},
            {},
            "3.0 of 80.0 GiB free, and an engine takes 72.0; process 42",
            "end that process",
        ),
        (
            {},
            {"tensor_parallel_size": 2},
            "model 'llm': a replica takes 2 GPUs",
            "and `nvidia-smi -L` shows 1",
        ),
        (
            {},
            {"accelerator_type": "A100"},
            "accelerator_type = 'A100', and this is 'H100'",
            "set that, or null",
        ),
        (
            {"weights": (READY.weights[0], 16 * 10**9)},
            {},
            "16.0 GB are to be downloaded, and /root/.cache/huggingface/hub has 16.0",
            "`export HF_HOME=…`",
        ),
        (
            {"caches": ("/root", CACHE_BYTES - 1)},
            {},
            "/root has 2.1 GB free, and compiled kernels need 2.1",
            "`export HOME=…`",
        ),
        (
            {"driver": Driver("580.65.06", (H100, H100)), "shared_bytes": 64 << 20},
            {"tensor_parallel_size": 2},
            "/dev/shm has 0.1 GB free, and 2 GPUs need 1.1",
            "--shm-size=8g`",
        ),
    ],
)
def test_each_missing_piece_is_one_sentence_with_its_mend(
    lacks: dict[str, Any], model: dict[str, Any], said: str, mend: str
) -> None:
    (sentence,) = sentences(READY._replace(**lacks), **model)

    assert said in sentence
    assert mend in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("machine", "model"),
    [
        (READY, {}),
        (READY, {"accelerator_type": "H100"}),
        (READY, {"accelerator_type": "H100-80G"}),
        (READY._replace(driver=Driver("610.43.02", (FULL,))), {"gpu_memory_utilization": 0.03}),
        (READY._replace(shared_bytes=0), {}),  # one GPU shares no memory
        (READY._replace(to_download={}, weights=("/hub", 0)), {}),  # all weights are here
    ],
)
def test_nothing_is_said_of_a_machine_that_has_all(machine: Machine, model: dict[str, Any]) -> None:
    assert sentences(machine, **model) == []


def test_all_missing_pieces_are_named_at_once() -> None:
    bare = READY._replace(
        has_packages=False,
        driver=None,
        nvcc=None,
        links=False,
        compiler=False,
        header="/Python.h",
    )

    assert len(sentences(bare, tensor_parallel_size=4)) == 5


def test_the_lock_is_of_the_release_that_the_driver_bound_is_for() -> None:
    lock = (REQUIREMENTS / "gpu.txt").read_text()
    found = re.search(r"^cuda-toolkit==(\d+)\.", lock, re.MULTILINE)
    assert found is not None
    assert int(found[1]) == CUDA
    assert OLDEST_DRIVER == 580  # of CUDA 13.x; another major release has another row in NVIDIA's table
