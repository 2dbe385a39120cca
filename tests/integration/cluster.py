"""A running Tideserve application for tests: its own Ray cluster, ports and temporary folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from serve_app.cli.listening import free_port, free_ports
from serve_app.cli.ray_token import token_header
from serve_app.env import FAST_PATH_PORTS

START_TIMEOUT_S = 240.0
ZYGOTE = not os.environ.get("WITHOUT_ZYGOTE")
"""`WITHOUT_ZYGOTE=1 make test` has every replica import what it needs by itself."""


def own_ports() -> dict[str, str]:
    """Those that two applications which start at the same moment would both find free."""
    return {
        name: str(port) for name, port in zip(FAST_PATH_PORTS, free_ports(len(FAST_PATH_PORTS)), strict=True)
    }


@dataclass(slots=True)
class Running:
    """`tideserve run` as a user starts it, with the configuration of the tests."""

    document: dict[str, Any]
    proxy: str = "auto"
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    seen: list[dict[str, Any]] = field(default_factory=list)
    """Every distinct body of /ready on the way up, oldest first."""
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ts-", dir="/tmp")))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "run.log").read_text(errors="replace")

    def start(self) -> None:
        config = self.folder / "serve.yaml"
        config.write_text(yaml.safe_dump(self.document))
        # Ray's workers import policies by name, from here.
        root = str(Path(__file__).parents[2])
        env = {**os.environ, **own_ports(), "RAY_TMPDIR": str(self.folder), "PYTHONPATH": root}
        env["XDG_STATE_HOME"] = str(self.folder)  # a ledger of its own
        env |= self.environment
        command = [sys.executable, "-m", "serve_app.cli.main", "run", str(config)]
        command += ["--port", str(self.port), "--proxy", self.proxy, *self.options]
        # Under `nohup` the tests ignore hang-ups, and what they start would inherit that.
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        try:
            with (self.folder / "run.log").open("wb") as log:
                self.process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
        finally:
            signal.signal(signal.SIGHUP, before)

    @contextmanager
    def serving(
        self, until: Callable[[int, dict[str, Any]], bool] = lambda status, _: status == 200
    ) -> Iterator[Running]:
        """Started, and ready by what `until` says of the status and body of /ready; ended with the block."""
        self.start()
        try:
            self.wait_ready(until)
            yield self
        finally:
            self.end()

    @property
    def dashboard(self) -> str:
        """The address of Ray's dashboard, which takes configurations."""
        found = re.findall(r"dashboard at (?:\x1b\[\d+m)*(?:http://)?(127\.0\.0\.1:\d+)", self.log)
        assert found, f"no dashboard address in:\n{self.log[-4000:]}"
        return f"http://{found[-1]}"

    def deploy(self, document: dict[str, Any]) -> None:
        """What `serve deploy` does with a file that holds `document`."""
        request = urllib.request.Request(
            f"{self.dashboard}/api/serve/applications/",
            json.dumps(document).encode(),
            {"Content-Type": "application/json", **token_header(self.dashboard)},
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert reply.status == 200

    def wait_ready(
        self, until: Callable[[int, dict[str, Any]], bool] = lambda status, _: status == 200
    ) -> dict[str, Any]:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                busy = "this machine is too busy" in self.log  # Ray gives its agents 15 s to start
                assert busy, f"tideserve run ended:\n{self.log[-4000:]}"
                self.start()
                deadline = time.monotonic() + START_TIMEOUT_S
            status, body = self.ready()
            if body and (not self.seen or self.seen[-1] != {"status": status, **body}):
                self.seen.append({"status": status, **body})
            if until(status, body):
                return body
            time.sleep(0.25)
        raise AssertionError(f"not ready within {START_TIMEOUT_S} s:\n{self.log[-4000:]}")

    def ready(self) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=10) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                try:
                    return error.code, json.load(error)
                except ValueError:
                    return error.code, {}
        except OSError:
            return 0, {}

    def descendants(self) -> list[psutil.Process]:
        """Every process `tideserve run` has started and not yet ended."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def processes(self, title: str) -> list[psutil.Process]:
        """Its processes whose title begins so, such as `ray::ServeReplica:tideserve:Engine`.

        What such a process starts has its title too, until it runs a program of its own, and is left out.
        """
        found = [process for process in self.descendants() if command_line(process).startswith(title)]
        pids = {process.pid for process in found}
        return [process for process in found if parent_pid(process) not in pids]

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Ctrl-C or another signal; returns the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(90)

    def end(self) -> None:
        """End every process at once, where no test is about the end: a clean one takes 5 to 10 s."""
        if self.process is None or self.process.poll() is not None:
            return
        started = [psutil.Process(self.process.pid), *self.descendants()]
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(30)
        psutil.wait_procs(started, timeout=30)


def command_line(process: psutil.Process) -> str:
    """Its command line, or the title that it has given itself; nothing once it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it ended while we looked
        return ""


def parent_pid(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def engine_settings(name: str, **more: Any) -> dict[str, Any]:
    """The embedded model, small enough for several engines on two cores."""
    return {
        "name": name,
        "model": "embedded",
        "device": "cpu",
        "cpus_per_replica": 0.1,
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "max_num_seqs": 64,
        "kv_cache_memory_bytes": 128 << 20,
        "enforce_eager": True,
        "env": {"VLLM_LOGGING_LEVEL": "WARNING"},
        **more,
    }


def application(
    *models: dict[str, Any],
    knobs: dict[str, dict[str, Any]] | None = None,
    ingress_knobs: dict[str, Any] | None = None,
    **args: Any,
) -> dict[str, Any]:
    """A Serve configuration with these models, these knobs by model, and one ingress replica unless told."""
    ingress = {"cpus_per_replica": 0.1, **args.pop("ingress", {})}
    user_config = {"autoscaling": knobs or {}, "ingress": ingress_knobs or {"max_replicas": 1}}
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": [
            {
                "name": "tideserve",
                "route_prefix": "/",
                "import_path": "serve_app.app:build",
                "autoscaling_policy": {"policy_function": "serve_app.controller.serve_policy:ServePolicy"},
                "args": {"models": list(models), "ingress": ingress, "zygote": ZYGOTE, **args},
                "deployments": [{"name": "Ingress", "user_config": user_config}],
            }
        ],
    }
