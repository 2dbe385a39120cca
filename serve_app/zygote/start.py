"""Zygotes that a process starts for itself: before Ray, and for a start without the node's zygote."""

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from serve_app import env
from serve_app.cluster.placement import engine_environment
from serve_app.settings.tree import ModelSettings
from serve_app.zygote.python import early_socket, start_zygote

_KILLED_WITHIN_S = 1.0


def start_early_zygotes(
    models: Iterable[ModelSettings], values: Mapping[str, str], folder: Path, output: IO[bytes]
) -> list[subprocess.Popen[bytes]]:
    """Start a zygote for each environment that engines of `models` have. They end with this process.

    So they import vLLM while Ray starts.

    Args:
        values: The environment of Ray's processes.
        folder: The folder of their sockets. Ray's workers find it in `env.EARLY_ZYGOTES`.
        output: Where their output goes.
    """
    environments = [engine_environment(model, zygote=True)["env_vars"] for model in models]
    return [
        start_zygote(early_socket(str(folder), key), os.getpid(), {**values, **variables}, output)
        for key, variables in {each[env.ZYGOTE]: each for each in environments}.items()
    ]


@contextmanager
def own_zygote(module: str) -> Iterator[None]:
    """Within the block, fork what this process starts through `tideserve-python` from one that has `module`.

    It imports beside this process, which may import the same for itself meanwhile.
    """
    with tempfile.TemporaryDirectory(prefix="tideserve-") as folder:
        path = os.path.join(folder, "zygote")
        zygote = start_zygote(path, os.getpid(), os.environ, subprocess.DEVNULL, [module])
        os.environ[env.ZYGOTE_SOCKET] = path
        try:
            yield
        finally:
            del os.environ[env.ZYGOTE_SOCKET]
            zygote.kill()
            with suppress(subprocess.TimeoutExpired):  # the kernel waits for a file that it imports
                zygote.wait(_KILLED_WITHIN_S)
