"""The packages for GPUs with stand-ins for NVIDIA's two libraries: `make test-gpu-stack`.

`GPU_STACK` names a virtual environment with requirements/gpu.txt. Without it, nothing here is collected.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from serve_app import env

ROOT = Path(__file__).parents[2]
STACK = os.environ.get("GPU_STACK", "")
collect_ignore_glob = [] if STACK else ["test_*.py"]

Fork = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Stack:
    """The Python of the virtual environment, and the environment in which its processes see the stand-ins."""

    bin: Path
    variables: dict[str, str]
    cuda_log: Path

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the virtual environment. A variable that is "" is removed."""
        given = {**self.variables, **variables}
        return subprocess.run(
            [self.bin / command[0], *command[1:]],
            env={name: value for name, value in given.items() if value},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    def initialisers(self) -> set[int]:
        """Return the processes that have initialised CUDA so far."""
        lines = self.cuda_log.read_text().splitlines() if self.cuda_log.exists() else []
        return {int(line.split()[0]) for line in lines}


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """Build the stand-ins beside nothing of CUDA: neither PATH nor a variable names a toolkit."""
    libraries = tmp_path_factory.mktemp("libraries")
    for name, library in (("nvml", "libnvidia-ml.so.1"), ("cuda", "libcuda.so.1")):
        source, soname = Path(__file__).with_name(f"{name}.c"), f"-Wl,-soname,{library}"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-Werror", soname, "-o", libraries / library, source, "-ldl"],
            check=True,
        )
    (libraries / "libcuda.so").symlink_to("libcuda.so.1")  # for the linker
    home = tmp_path_factory.mktemp("home")
    variables = {
        "HOME": str(home),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "LD_LIBRARY_PATH": str(libraries),
        "LIBRARY_PATH": str(libraries),
        "FAKE_CUDA_LOG": str(home / "cuda.log"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "RAY_TMPDIR": str(tmp_path_factory.mktemp("ray")),
        "XDG_STATE_HOME": str(home / "state"),
    }
    return Stack(Path(STACK, "bin"), variables, home / "cuda.log")


@pytest.fixture(scope="session")
def fork(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fork]:
    """Run code in forks of a zygote with the packages for GPUs. It prints a line of JSON, which is returned.

    The zygote is the product's own, with its usual imports, and `tideserve-python` is its client. The first
    call waits for the imports, which took up to 230 s on two slow cores.
    """
    folder = tmp_path_factory.mktemp("zygote")
    socket, log = folder / "zygote", folder / "zygote.log"
    start = (
        "import os, sys; from serve_app.zygote.python import start_zygote; "
        "start_zygote(sys.argv[1], os.getpid(), os.environ, 2); input()"
    )
    with (
        log.open("w") as output,
        subprocess.Popen(
            [stack.bin / "python", "-c", start, socket],
            env=stack.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
        ) as owner,
    ):
        while not socket.exists():
            assert owner.poll() is None, log.read_text()
            time.sleep(0.1)

        def run(code: str, **variables: str) -> Any:
            given = {env.ZYGOTE_SOCKET: str(socket), "CUDA_VISIBLE_DEVICES": "0", **variables}
            done = stack.run("tideserve-python", "-c", code, **given)
            assert done.returncode == 0, done.stderr[-4000:] + log.read_text()[-4000:]
            return json.loads(done.stdout.splitlines()[-1])

        yield run
        owner.communicate(b"\n")
