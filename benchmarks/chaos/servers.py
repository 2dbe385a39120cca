"""The application under attack: `tideserve run` on one raylet, or a server that runs already."""

import asyncio
import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.chaos.engines import pairs
from benchmarks.chaos.observed import Event
from benchmarks.chaos.processes import Processes
from serve_app.cli.progress import ask_ready
from serve_app.settings.document import parse_yaml
from serve_app.wire.names import INGRESS

NODE = "head"
_START_S = 300.0
_POLL_S = 0.25
_TAIL = 2000
_END_S = 20.0


class ChaosError(Exception):
    """What keeps a run from being carried out, in a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a configuration serves."""

    document: dict[str, Any]
    model: str
    engines: int
    """Replicas that the knobs keep up."""


def read(path: Path) -> Served:
    """A configuration with one model that always has replicas.

    Raises ChaosError if it cannot be read, or its model may be at zero, where nothing could be attacked.
    """
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"), "--config").value
        application = document["applications"][0]
        (model,) = application["args"]["models"]
        (ingress,) = (one for one in application["deployments"] if one["name"] == INGRESS)
        knobs = ingress["user_config"]["autoscaling"][model["name"]]
        engines = int(knobs["min_replicas"])
    except OSError as error:
        raise ChaosError(f"--config = {path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ChaosError(
            f"--config = {path}: needs one application with one model and its min_replicas ({error!r})"
        ) from None
    if engines < 1:
        raise ChaosError(f"--config = {path}: min_replicas = {engines}; must be at least 1")
    return Served(document, str(model["name"]), engines)


def with_engines(served: Served, engines: int) -> Served:
    """The same with so many replicas kept up, no fewer and no more."""
    document = copy.deepcopy(served.document)
    (ingress,) = (one for one in document["applications"][0]["deployments"] if one["name"] == INGRESS)
    ingress["user_config"]["autoscaling"][served.model] |= {"min_replicas": engines, "max_replicas": engines}
    return Served(document, served.model, engines)


class OneNode:
    """`tideserve run --restart` with its own Ray, started anew whenever it has ended all the same."""

    def __init__(self, served: Served, port: int, folder: Path, processes: Processes) -> None:
        self.engines = served.engines
        self._port, self._folder, self._processes = port, folder, processes
        self._config = folder / "serve.yaml"
        self._config.write_text(yaml.safe_dump(served.document, sort_keys=False), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def log(self) -> Path:
        """The output of the latest start."""
        return self._folder / f"run-{self._starts}.log"

    def ended(self) -> str | None:
        """How `tideserve run` ended."""
        assert self._process is not None
        status = self._process.poll()
        if status is None:
            return None
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return f"tideserve run ended {how}"

    async def start(self) -> None:
        """Start it, and wait until it is ready."""
        self._starts += 1
        environment = {**os.environ, "RAY_TMPDIR": str(self._folder)}
        command = [sys.executable, "-m", "serve_app.cli.main", "run", str(self._config)]
        command += ["--port", str(self._port), "--restart", "--verbose"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220
                command, env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, process_group=0,
            )  # fmt: skip
        self._processes.nodes = {self._process.pid: NODE}
        self._processes.look()
        await ready(self._port, self.ended, self.log)

    async def stop(self) -> None:
        """Kill all of it: what is left after an attack may not react to anything else."""
        await end_all(lambda: self._processes.everything(NODE))
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)

    async def restore(self, event: Event) -> None:
        """Nobody restores anything here."""


async def ready(port: int, ended: Any, log: Path) -> None:
    """Wait until the application is ready. Raises ChaosError if it is not, or its server has ended."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if (how := ended()) is not None:
            raise ChaosError(f"{how} before it was ready:\n{tail(log)}")
        if (await asyncio.to_thread(ask_ready, f"http://127.0.0.1:{port}"))[0]:
            return
        await asyncio.sleep(_POLL_S)
    raise ChaosError(f"the server is not ready after {_START_S:g} s; see {log}:\n{tail(log)}")


async def end_all(left: Any) -> None:
    """Kill what `left` finds until it finds nothing."""
    end = time.monotonic() + _END_S
    while pids := left():
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        if time.monotonic() > end:
            raise ChaosError(f"processes that cannot be killed: {', '.join(map(str, pids))}")
        await asyncio.sleep(_POLL_S)


def tail(log: Path) -> str:
    """The end of a log."""
    return log.read_text(errors="replace")[-_TAIL:]


_TIMEOUT_S = 10.0


class Given:
    """Attacked as it is, and never started or stopped."""

    def __init__(self, url: str, model: str | None, processes: Processes) -> None:
        """Raises ChaosError if it does not answer, or serves no such model."""
        self._url, self._processes = url, processes
        models = _models(url)
        if model is None and len(models) != 1:
            raise ChaosError(f"{url} serves {', '.join(models) or 'no model'}: give --model, one of them")
        self.model = model or models[0]
        if self.model not in models:
            raise ChaosError(f"--model = {self.model!r}: not served; there are {', '.join(models)}")
        self.engines = 0

    def ended(self) -> str | None:
        """When no process of it is left."""
        return None if self._processes.look().processes else "every process of the server has ended"

    async def start(self) -> None:
        """Count its engines, or say that it cannot be started again."""
        if self.engines:
            raise ChaosError(f"{self._url} did not recover, and a server given by --url is not started anew")
        self.engines = len(pairs(self._processes.look()))
        if not self.engines:
            raise ChaosError("--pid: no engine descends from these processes; give that of `tideserve run`")

    async def stop(self) -> None:
        """It is not ours."""

    async def restore(self, event: Event) -> None:
        """It is not ours."""


def _models(url: str) -> list[str]:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=_TIMEOUT_S) as reply:
            return list(json.load(reply)["models"])
    except urllib.error.HTTPError as error:
        with error:
            raise ChaosError(f"{url}/ready answers {error.code}: not ready to be attacked") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ChaosError(f"--url = {url}: no /ready of Tideserve answers there ({error})") from None
