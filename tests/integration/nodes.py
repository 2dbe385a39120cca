"""Two or more nodes on this machine, as KubeRay starts pods: a raylet each, below a process of its own.

Ingress and HAProxy are on the head, so that no client's connection ends with another node.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from serve_app.cli.listening import free_ports, port_taken
from serve_app.cli.run_environment import environment
from serve_app.haproxy.environment import haproxy_environment
from tests.integration.cluster import FAST_PATH_PORTS, START_TIMEOUT_S
from tests.timing import wait_until

RAY = """
from serve_app.processes import adopt_orphans
adopt_orphans()
from ray.scripts.scripts import main
main()
"""
"""`ray` as the first process of a pod, below which all processes of its node stay."""


class Nodes:
    """A head and other nodes, each below a process of its own."""

    def __init__(self, folder: Path) -> None:
        # Two draws may give the same port.
        self._ports = iter(free_ports(60))
        self.port, self._gcs, self._dashboard, self._client_server = islice(self._ports, 4)
        self._environments: dict[str, dict[str, str]] = {}
        self._folder, self._token = folder, secrets.token_hex(32)
        self._leaders: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, resources: Mapping[str, float]) -> subprocess.Popen[bytes]:
        """Start the node `head`, or another one that joins it, with these custom resources."""
        ports = 21000 + 200 * len(self._leaders)
        options: dict[str, object] = {
            "node-ip-address": "127.0.0.1",
            "num-cpus": 2,
            "object-store-memory": 100 << 20,
            "dashboard-agent-listen-port": next(self._ports),
            "min-worker-port": ports,
            "max-worker-port": ports + 199,
            "resources": json.dumps(resources),
        }
        if name == "head":
            ours = {"port": self._gcs, "dashboard-port": self._dashboard, "temp-dir": self._folder}
            options |= {**ours, "ray-client-server-port": self._client_server}
        else:
            options["address"] = f"127.0.0.1:{self._gcs}"
        command = [sys.executable, "-c", RAY, "start", "--block", "--disable-usage-stats"]
        command += ["--head"] if name == "head" else []
        command += [f"--{option}={value}" for option, value in options.items()]
        for _ in range(3):  # on a busy machine Ray gives up after 30 s, and Kubernetes starts the pod again
            if leader := self._start(name, command):
                return leader
        raise AssertionError((self._folder / f"{name}.log").read_text(errors="replace")[-4000:])

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes] | None:
        """Return the first process of a node once the node has started; None if it has ended."""
        log = self._folder / f"{name}.log"
        with log.open("wb") as out:
            leader = subprocess.Popen(command, env=self._environment(name), stdout=out, stderr=out)
        self._leaders.append(leader)

        def started() -> bool:
            whole = name != "head" or port_taken(self._client_server)  # without this server the head ends
            return whole and "Ray runtime started" in log.read_text(errors="replace")

        wait_until(lambda: started() or leader.poll() is not None, bool, str(log), START_TIMEOUT_S, 0.25)
        return leader if leader.poll() is None else None

    def _environment(self, name: str) -> dict[str, str]:
        """Each node needs ports and sockets of its own for the parts of Ray Serve that each node has."""
        if name not in self._environments:
            names = [*FAST_PATH_PORTS, "RAY_SERVE_HAPROXY_STATS_PORT", "RAY_SERVE_HAPROXY_METRICS_PORT"]
            values = environment("haproxy", local=False)
            values |= {each: str(port) for each, port in zip(names, self._ports, strict=False)}
            values |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._token}
            values |= {"PYTHONPATH": str(Path(__file__).parents[2])}
            node = self._folder / name
            node.mkdir()
            self._environments[name] = haproxy_environment(values, node)
        return self._environments[name]

    def deploy(self, document: dict[str, Any]) -> None:
        """Deploy a document of `application`. Its ingress must take a resource of the head alone."""
        document |= {"http_options": {"host": "127.0.0.1", "port": self.port}, "proxy_location": "HeadOnly"}
        config = self._folder / "serve.yaml"
        config.write_text(yaml.safe_dump(document))
        command = ["-m", "ray.serve.scripts", "deploy", str(config)]
        command += ["--address", f"http://127.0.0.1:{self._dashboard}"]
        subprocess.run([sys.executable, *command], env=self._environment("head"), check=True)

    def run(self, *arguments: str) -> str:
        """Return what Python prints that runs on the head with these arguments, in which @ is the GCS."""
        whole = [argument.replace("@", f"127.0.0.1:{self._gcs}") for argument in arguments]
        done = subprocess.run(
            [sys.executable, *whole],
            env=self._environment("head"),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> None:
        for leader in self._leaders:
            end_node(leader)


def end_node(leader: subprocess.Popen[bytes]) -> None:
    """Kill every process of a node at once, as when its machine is lost."""
    if leader.poll() is None:
        tree = psutil.Process(leader.pid)
        for process in [*tree.children(recursive=True), tree]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        leader.wait(30)


@contextmanager
def throttled(leader: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let the engines of a node run for a third of the time."""
    ended = threading.Event()

    def stop_and_go() -> None:
        engines: list[psutil.Process] = []
        look_at = 0.0
        while not ended.is_set():
            if time.monotonic() >= look_at:
                engines, look_at = engine_cores(leader), time.monotonic() + 1.0
            _signal(engines, signal.SIGSTOP)
            ended.wait(0.04)
            _signal(engines, signal.SIGCONT)
            ended.wait(0.02)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def engine_cores(leader: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the engine cores of a node that run. An ended one is a zombie until its node ends."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for each in psutil.Process(leader.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if each.name().startswith("VLLM::EngineCor") and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each)
    return found


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    made = Nodes(Path(tempfile.mkdtemp(prefix="ts-", dir="/tmp")))
    try:
        yield made
    finally:
        made.end()
