"""The zygotes that `tideserve run` starts before Ray, so that they import vLLM while Ray starts."""

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from serve_app import env
from serve_app.cli.server_log import ServerLog
from serve_app.cluster.placement import engine_environment
from serve_app.settings.tree import ModelSettings
from serve_app.zygote.python import early_socket, start_zygote


def start_early_zygotes(
    models: Iterable[ModelSettings], values: Mapping[str, str], folder: Path, log: ServerLog
) -> list[subprocess.Popen[bytes]]:
    """Start a zygote for each environment that engines of `models` have. They end with this process.

    Args:
        values: The environment of Ray's processes.
        folder: Where their sockets go; Ray's workers are told of it in `env.EARLY_ZYGOTES`.
        log: Where they write what they have to say.
    """
    environments = [engine_environment(model, zygote=True)["env_vars"] for model in models]
    with log.writer() as output:
        return [
            start_zygote(early_socket(str(folder), key), os.getpid(), {**values, **variables}, output)
            for key, variables in {each[env.ZYGOTE]: each for each in environments}.items()
        ]
