"""One replay of the matrix, in this process or, with the law of another checkout, in one of its own."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import REPOSITORY
from benchmarks.law_cells.figures import CellRun
from benchmarks.law_cells.plan import CellJob
from benchmarks.law_cells.replayed import replayed

_CHILD = "benchmarks.law_cells.other_checkout"


def execute(job: CellJob) -> CellRun:
    """Replay `job`.

    Raises RuntimeError with what `serve_app` of another checkout lacks, or what failed there, and what
    `replayed` raises.
    """
    if job.law is None or job.law.checkout == REPOSITORY:
        return replayed(job)
    return CellRun(**json.loads(_in_checkout(job.law.checkout, pickle.dumps(job))))


def _in_checkout(checkout: Path, job: bytes) -> str:
    """What a process printed that has `serve_app` from `checkout`, and all else from here."""
    with TemporaryDirectory(prefix="law-cells-") as folder:
        Path(folder, "serve_app").symlink_to(checkout / "serve_app", target_is_directory=True)
        # Without -P the working directory would come first, and with it the `serve_app` that may be in it.
        done = subprocess.run(
            [sys.executable, "-P", "-m", _CHILD, str(checkout)],
            input=job,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}"},
            check=False,
        )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise RuntimeError(said[-1] if said else f"its process ended with status {done.returncode}")
    return done.stdout.decode()
