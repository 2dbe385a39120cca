"""The application under attack: `tideserve run` with a Ray cluster of its own."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.chaos.processes import Processes
from serve_app.cli.progress import ask_ready
from serve_app.settings.document import parse_yaml
from serve_app.wire.names import INGRESS

_START_S = 300.0
_POLL_S = 0.25
_TAIL = 2000
_END_S = 20.0


class ChaosError(Exception):
    """A run cannot be carried out: one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Served:
    """A configuration of one model."""

    document: dict[str, Any]
    model: str
    engines: int
    """Replicas that the knobs keep up."""


def read_config(path: Path, engines: int | None = None) -> Served:
    """A configuration with one model that always has replicas: `engines` of them, if given.

    Raises ChaosError if it cannot be read, or its model may be at zero, where nothing could be attacked.
    """
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"), "--config").value
        application = document["applications"][0]
        (model,) = application["args"]["models"]
        (ingress,) = (one for one in application["deployments"] if one["name"] == INGRESS)
        knobs = ingress["user_config"]["autoscaling"][model["name"]]
        if engines is not None:
            knobs |= {"min_replicas": engines, "max_replicas": engines}
        least = int(knobs["min_replicas"])
    except OSError as error:
        raise ChaosError(f"--config = {path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ChaosError(
            f"--config = {path}: needs one application with one model and its min_replicas ({error!r})"
        ) from None
    if least < 1:
        raise ChaosError(f"--config = {path}: min_replicas = {least}; must be at least 1")
    return Served(document, str(model["name"]), least)


class OwnServer:
    """`tideserve run --restart`, started anew where it has ended all the same."""

    def __init__(self, served: Served, port: int, folder: Path, processes: Processes) -> None:
        self.engines = served.engines
        self.url = f"http://127.0.0.1:{port}"
        self._port, self._folder, self._processes = port, folder, processes
        self._config = folder / "serve.yaml"
        self._config.write_text(yaml.safe_dump(served.document, sort_keys=False), encoding="utf-8")
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
