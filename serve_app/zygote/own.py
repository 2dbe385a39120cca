"""A zygote of one process's own, for the time of a start without that of the node."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from serve_app import env
from serve_app.zygote.python import start_zygote

_KILLED_WITHIN_S = 1.0


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
