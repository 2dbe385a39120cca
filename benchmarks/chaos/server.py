"""The application under attack: `tideserve run` with a Ray cluster of its own."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.chaos.processes import Processes
from serve_app.cli.progress import ask_ready

MODEL = "tideserve-tiny"
_START_S = 300.0
_POLL_S = 0.25
_TAIL = 2000
_END_S = 20.0


class ChaosError(Exception):
    """A run cannot be carried out: one sentence for the user."""


def read_config(engines: int) -> dict[str, Any]:
    """The configuration beside this file, with `engines` replicas kept up."""
    document: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("serve.yaml").read_text("utf-8"))
    (ingress,) = document["applications"][0]["deployments"]
    ingress["user_config"]["autoscaling"][MODEL] |= {"min_replicas": engines, "max_replicas": engines}
    return document


class OwnServer:
    """`tideserve run --restart`, started anew where it has ended all the same."""

    def __init__(self, engines: int, port: int, folder: Path, processes: Processes) -> None:
        self.engines = engines
        self.url = f"http://127.0.0.1:{port}"
        self._port, self._folder, self._processes = port, folder, processes
        self._config = folder / "serve.yaml"
        self._config.write_text(yaml.safe_dump(read_config(engines)), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def ended(self) -> str | None:
        """How `tideserve run` ended; None while it runs."""
        status = None if self._process is None else self._process.poll()
        if status is None:
            return None
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return f"tideserve run ended {how}"

    async def start(self) -> None:
        """Start it, and wait until it is ready. Raises ChaosError if it does not become so."""
        self._starts += 1
        log = self._folder / f"run-{self._starts}.log"
        command = [sys.executable, "-m", "serve_app.cli.main", "run", str(self._config)]
        command += ["--port", str(self._port), "--restart", "--verbose"]
        with log.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: ASYNC220
                command, env={**os.environ, "RAY_TMPDIR": str(self._folder)}, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, process_group=0,
            )  # fmt: skip
        end = time.monotonic() + _START_S
        while (how := self.ended()) is None and time.monotonic() < end:
            if (await asyncio.to_thread(ask_ready, self.url))[0]:
                return
            await asyncio.sleep(_POLL_S)
        tail = log.read_text(errors="replace")[-_TAIL:]
        raise ChaosError(f"{how or f'no answer within {_START_S:g} s'}; the end of {log}:\n{tail}")

    async def stop(self) -> None:
        """Kill all of it: processes that an attack has left may not react to anything else."""
        end = time.monotonic() + _END_S
        while pids := self._processes.pids():
            for pid in pids:
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).kill()
            if time.monotonic() > end:
                raise ChaosError(f"processes that cannot be killed: {', '.join(map(str, pids))}")
            await asyncio.sleep(_POLL_S)
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
