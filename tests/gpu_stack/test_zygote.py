"""The zygote with the packages for GPUs: its imports, its threads, and what its forks can still do."""

from tests.gpu_stack.conftest import Fork, Stack

REPORT = """
import json, os, sys
import torch
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
import torch._inductor.config as inductor
print(json.dumps({
    "forked": "TIDESERVE_ZYGOTE_READY_AT" in os.environ,
    "processes": [os.getpid(), os.getppid()],
    "platform": type(current_platform).__name__,
    "cuda": torch.version.cuda,
    "triton": HAS_TRITON,
    "threads": len(os.listdir("/proc/self/task")),
    "poisoned": torch.cuda._is_in_bad_fork(),
    "initialised": torch.cuda.is_initialized(),
    "nvml_check": os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"),
    "compile_threads": inductor.compile_threads,
    "variables": {name: os.environ.get(name) for name in ("CUDA_HOME", "PATH", "CUDA_VISIBLE_DEVICES")},
    "ray": "ray" in sys.modules,
    "heavy": [name for name in ("flashinfer", "numba", "cutlass") if name in sys.modules],
}))
"""


def test_forks_see_the_platform_and_are_not_poisoned(stack: Stack, fork: Fork) -> None:
    found = fork(REPORT)

    assert found["forked"], "the zygote refused to fork, and plain Python ran"
    assert (found["platform"], found["triton"]) == ("NvmlCudaPlatform", True)
    assert found["cuda"].startswith("13.")
    assert (found["threads"], found["poisoned"], found["initialised"]) == (1, False, False)
    assert found["ray"]
    assert found["heavy"] == []
    assert not stack.initialisers() & set(found["processes"])


def test_forks_keep_what_vllm_has_set_at_its_import(fork: Fork) -> None:
    found = fork(REPORT)

    assert (found["nvml_check"], found["compile_threads"]) == ("1", 1)
    assert (
        fork("import json, os; print(json.dumps(os.environ['GIVEN']))", GIVEN="to the fork") == "to the fork"
    )


def test_forks_find_the_compilers_of_the_packages(stack: Stack, fork: Fork) -> None:
    variables = fork(REPORT)["variables"]

    assert variables["CUDA_HOME"].endswith("/site-packages/nvidia/cu13")
    assert variables["PATH"].split(":")[0] == str(stack.bin)
    assert variables["CUDA_VISIBLE_DEVICES"] == "0"


def test_fork_can_initialise_cuda_itself(stack: Stack, fork: Fork) -> None:
    """It comes as far as on a machine without a device, and the zygote is none the worse for it."""
    code = """
import json, os, torch
try:
    torch.zeros(1, device="cuda")
except RuntimeError as error:
    print(json.dumps([os.getpid(), os.getppid(), str(error).splitlines()[0]]))
"""
    process, zygote, error = fork(code)

    assert "Cannot re-initialize CUDA in forked subprocess" not in error
    assert {process, zygote} & stack.initialisers() == {process}
    assert not fork(REPORT)["poisoned"]


def test_zygote_refuses_imports_that_use_cuda(stack: Stack) -> None:
    """A count of the devices poisons forks, and torch calls CUDA not initialised after it."""
    code = """
import sys, types
from serve_app.zygote.zygote import _import
module = sys.modules["counting"] = types.ModuleType("counting")
import torch
module.count = torch._C._cuda_getDeviceCount
_import(["counting:count"])
"""
    done = stack.run("python", "-c", code, OPENBLAS_NUM_THREADS="1")  # as `start_zygote` has it

    assert "an import has used CUDA, which no fork could use" in done.stderr
    assert done.returncode == 1
