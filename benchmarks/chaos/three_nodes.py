"""The application on three raylets of one host, as KubeRay starts pods: `ray start --block` leads each.

The head has no CPUs, so that only Ray's and Serve's own processes are on it; each of the other two has room
for one ingress replica and half of the engines. The workers' HAProxys listen on one port (SO_REUSEPORT),
whose connections the kernel deals out among those that live: the part that a Service has on Kubernetes. The
head's listens on another port, which gets no requests. With `front="head"` the ingress and the only HAProxy
are on the head instead, so that a lost worker takes engines along and no connection of a client. A lost node
is started again, as an operator would.
"""

import asyncio
import copy
import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import yaml

from benchmarks.chaos.observed import Event
from benchmarks.chaos.processes import Processes
from benchmarks.chaos.roles import BY_NAME, NODE
from benchmarks.chaos.servers import ChaosError, Served, end_all, ready, tail
from serve_app import env
from serve_app.cli.listening import free_port
from serve_app.cli.run_environment import environment
from serve_app.haproxy.environment import haproxy_environment
from serve_app.wire.names import INGRESS

HEAD, WORKERS = "head", ("worker-1", "worker-2")
Front = Literal["workers", "head"]
"""Where clients' connections end."""
_REPLACED_S = 5.0
"""An operator's new pod is there after this."""
_NODE_S, _DEPLOY_S = 60.0, 120.0
_STARTED = "Ray runtime started"
_WORKER_PORTS, _PORTS_EACH = 21000, 200
_POLL_S = 0.5
_RAY = """
from serve_app.cli.ray_processes import adopt_orphans
adopt_orphans()
from ray.scripts.scripts import main
main()
"""
"""`ray` as the first process of a pod: the node of a process is not lost with what started it."""


class ThreeNodes:
    """A head and two workers."""

    names = (HEAD, *WORKERS)

    def __init__(
        self, served: Served, port: int, folder: Path, processes: Processes, front: Front = "workers"
    ) -> None:
        self.engines = served.engines
        self._front = front
        self._port, self._folder, self._processes = port, folder, processes
        self._gcs, self._dashboard = free_port(), free_port()
        self._config = folder / "serve.yaml"
        self._config.write_text(yaml.safe_dump(self._pinned(served.document)), encoding="utf-8")
        self._token = secrets.token_hex(32)
        self._leaders: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: str | None = None
        self._restoring: asyncio.Task[None] | None = None

    def ended(self) -> str | None:
        """The cluster ends with its head; a worker that is lost is replaced."""
        return self._ended

    async def start(self) -> None:
        """Start all three nodes and deploy."""
        self._ended = None
        for name in self.names:  # In turn: of two raylets that start at once on one host, one timed out.
            self._start(name)
            await self._started(name)
        await self._deploy()
        await ready(self._port, self.ended, self._log(HEAD))

    async def stop(self) -> None:
        """Kill every process of every node."""
        if self._restoring is not None:
            self._restoring.cancel()
        for name in self.names:
            await end_all(lambda name=name: self._processes.everything(name))
        for leader in self._leaders.values():
            await asyncio.to_thread(leader.wait)

    async def restore(self, event: Event) -> None:
        """Start another node in place of one that is lost, as an operator does."""
        ends = event.role == NODE.name or BY_NAME[event.role].ends_node
        if ends and (self._restoring is None or self._restoring.done()):
            self._restoring = asyncio.create_task(self._replace_lost())

    async def _replace_lost(self) -> None:
        """Until cancelled: a node whose leader has ended is replaced, and with the head the cluster is."""
        while True:
            await asyncio.sleep(_POLL_S)
            for name, leader in list(self._leaders.items()):
                if leader.poll() is None:
                    continue
                if name == HEAD:
                    self._ended = "the head ended, and the cluster with it,"
                    return
                await asyncio.sleep(_REPLACED_S)
                await end_all(lambda name=name: self._processes.everything(name))
                self._start(name)

    def _start(self, name: str) -> None:
        with self._log(name).open("wb") as log:
            leader = subprocess.Popen(
                self._command(name), env=self._environment(name), stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, process_group=0,
            )  # fmt: skip
        self._leaders[name] = leader
        self._processes.nodes = {one.pid: key for key, one in self._leaders.items()}
        self._processes.look()

    def _command(self, name: str) -> list[str]:
        first = _WORKER_PORTS + self.names.index(name) * _PORTS_EACH
        options: dict[str, object] = {
            "node-ip-address": "127.0.0.1",
            "object-store-memory": 100 << 20,
            "dashboard-agent-listen-port": free_port(),
            "min-worker-port": first,
            "max-worker-port": first + _PORTS_EACH - 1,
        }
        here = {"ingress:replicas": 1} if (name == HEAD) == (self._front == "head") else {}
        if name == HEAD:
            options |= {
                "port": self._gcs,
                "num-cpus": len(here),
                "resources": json.dumps(here),
                "dashboard-port": self._dashboard,
                "ray-client-server-port": free_port(),
                "temp-dir": self._folder,
            }
        else:
            room = {**here, "engine:replicas": -(-self.engines // len(WORKERS))}
            options |= {"address": f"127.0.0.1:{self._gcs}", "num-cpus": 2, "resources": json.dumps(room)}
        command = [sys.executable, "-c", _RAY, "start", "--block", "--disable-usage-stats"]
        command += ["--head"] if name == HEAD else []
        return command + [f"--{option}={value}" for option, value in options.items()]

    def _environment(self, name: str = HEAD) -> dict[str, str]:
        """Each node needs ports and sockets of its own for what Ray Serve has once a node."""
        values = environment("haproxy", local=False)
        values |= {env.REUSE_PORT: "1", "RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(self._port)}
        ports = ("STATS_PORT", "METRICS_PORT")
        own = {f"RAY_SERVE_HAPROXY_{port}": str(free_port()) for port in ports}
        own |= {f"RAY_SERVE_FALLBACK_PROXY_{kind}_PORT": str(free_port()) for kind in ("HTTP", "GRPC")}
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (root, values.get("PYTHONPATH"))))
        values |= own | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._token, "PYTHONPATH": path}
        node = self._folder / name
        node.mkdir(exist_ok=True)
        return haproxy_environment(values, node)

    async def _started(self, name: str) -> None:
        """Wait until Ray says that it runs."""
        end = time.monotonic() + _NODE_S
        while time.monotonic() < end and self._leaders[name].poll() is None:
            if _STARTED in self._log(name).read_text(errors="replace"):
                return
            await asyncio.sleep(_POLL_S)
        raise ChaosError(f"the node {name} did not start:\n{tail(self._log(name))}")

    async def _deploy(self) -> None:
        command = ["-m", "ray.serve.scripts", "deploy", str(self._config)]
        command += ["--address", f"http://127.0.0.1:{self._dashboard}"]
        log = self._folder / "deploy.log"
        with log.open("ab") as output:
            deploy = await asyncio.create_subprocess_exec(
                sys.executable, *command, env=self._environment(), stdout=output, stderr=subprocess.STDOUT
            )
            try:
                status = await asyncio.wait_for(deploy.wait(), _DEPLOY_S)
            except TimeoutError:
                deploy.kill()
                status = await deploy.wait()
        if status:
            raise ChaosError(f"serve deploy ended with status {status}:\n{tail(log)}")

    def _pinned(self, document: dict[str, Any]) -> dict[str, Any]:
        if self._front == "workers":
            return pinned(document, free_port(), len(WORKERS))
        return {**pinned(document, self._port, 1), "proxy_location": "HeadOnly"}

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def pinned(document: dict[str, Any], port: int, ingresses: int) -> dict[str, Any]:
    """The configuration with so many ingress replicas, and each replica on a node with room for its kind."""
    found = copy.deepcopy(document)
    found["http_options"] = {**(found.get("http_options") or {}), "port": port}
    application = found["applications"][0]
    args = application["args"]
    # Raylets of one host share a folder, and a zygote in it would fork for all of them, and end with its own.
    args["zygote"] = False
    args["models"][0]["resources"] = {"engine:replicas": 1}
    args["ingress"] = {**args.get("ingress", {}), "resources": {"ingress:replicas": 1}}
    (ingress,) = (one for one in application["deployments"] if one["name"] == INGRESS)
    ingress["user_config"]["ingress"] = {"min_replicas": ingresses, "max_replicas": ingresses}
    return found
