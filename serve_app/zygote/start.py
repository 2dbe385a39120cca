"""Zygotes outside Ray: started before Ray, or by a replica whose node has no zygote."""

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
    """Start a zygote for each environment of the engines of `models`. The zygotes end with this process.

    They import vLLM while Ray starts.

    Args:
        values: The environment of Ray's processes.
        folder: The folder of the sockets. Ray's workers read it from `env.EARLY_ZYGOTES`.
        output: The file for the zygotes' output.
    """
    environments = [engine_environment(model, zygote=True)["env_vars"] for model in models]
    return [
        start_zygote(early_socket(str(folder), key), os.getpid(), {**values, **variables}, output)
        for key, variables in {each[env.ZYGOTE]: each for each in environments}.items()
    ]


@contextmanager
def own_zygote(module: str) -> Iterator[None]:
    """Within the block, `tideserve-python` forks from a new zygote that imports `module`.

    The zygote imports in parallel with this process.
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
            with suppress(subprocess.TimeoutExpired):  # it may wait in the kernel for a file
                zygote.wait(_KILLED_WITHIN_S)
