"""A real HAProxy below our supervisor, started, reloaded and stopped by Ray's own code, without Ray."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import ray.serve._private.haproxy as ray_haproxy
from ray.serve.config import HTTPOptions

from serve_app.cli.listening import free_port
from serve_app.haproxy.admin_socket import AdminSocket
from serve_app.processes import is_alive

WAIT_S = 20.0
_END_S = 150.0
"""On busy machines, HAProxy 2.8 may end without waking its other threads. They sleep for up to 60 s."""


class Replica(BaseHTTPRequestHandler):
    """An ingress replica: healthy, and with a stream that ends when the test says so."""

    protocol_version = "HTTP/1.1"
    go_on = threading.Event()
    words = b"from the replica"
    drains = False
    answered_draining = threading.Semaphore(0)
    """Has a permit for each health check that a draining replica has answered."""

    def do_GET(self) -> None:
        match self.path:
            case "/-/healthz" if self.drains:  # as Ray answers
                self._answer([b"DRAINING"], status=503)
                self.answered_draining.release()
            case "/-/healthz":
                self._answer([b"success"])
            case "/stream":
                self._answer([b"first", b"last"])
            case _:
                self._answer([self.words])

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer([b"read"])

    def _answer(self, chunks: list[bytes], status: int = 200) -> None:
        self.send_response(status)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, chunk in enumerate(chunks):
            if number:
                self.go_on.wait(WAIT_S)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *args: object) -> None:
        pass


class Replicas(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: object) -> None:
        """Health checks hang up before they have read everything."""


@contextmanager
def replica() -> Iterator[int]:
    """The port of a replica."""
    Replica.go_on = threading.Event()
    with Replicas(("127.0.0.1", 0), Replica) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:  # after a failed test too: the thread would keep pytest from its end
            Replica.go_on.set()
            server.shutdown()
            thread.join()


@dataclass(slots=True)
class Answer:
    status: int
    body: bytes
    headers: http.client.HTTPMessage


@dataclass(slots=True)
class Proxy:
    """What one of Ray's HAProxyManagers has; another one may take its place."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = field(default_factory=free_port)
    metrics_port: int = field(default_factory=free_port)
    stats_port: int = field(default_factory=free_port)
    api: ray_haproxy.HAProxyApi = field(init=False)

    def __post_init__(self) -> None:
        node = self.folder / "node"
        config = ray_haproxy.HAProxyConfig(
            http_options=HTTPOptions(host=self.host, port=self.port),
            is_head=True,
            socket_path=str(node / "admin.sock"),
            server_state_base=str(node),
            server_state_file=str(node / "server-state"),
            metrics_socket_path=str(node / "metrics.sock"),
            metrics_port=self.metrics_port,
            stats_port=self.stats_port,
            health_check_inter="1s",
        )
        self.api = ray_haproxy.HAProxyApi(config, config_file_path=str(node / "proxy.cfg"))

    async def __aenter__(self) -> Proxy:
        await self.api.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.api.stop()

    async def next_manager(self) -> None:
        """What Ray starts when the actor has died: it knows the ports and nothing else."""
        self.__post_init__()
        await self.api.start()

    async def deploy(self, *ports: int, prefix: str = "/", others: str = "") -> None:
        """Deploy an application with replicas, and others without replicas at the prefixes in `others`."""
        servers = [ray_haproxy.ServerConfig(name=f"s{port}", host="127.0.0.1", port=port) for port in ports]
        backend = ray_haproxy.BackendConfig(
            name="http-app", path_prefix=prefix, app_name="app", servers=servers
        )
        without = {
            f"http-{other[1:]}": ray_haproxy.BackendConfig(
                name=f"http-{other[1:]}", path_prefix=other, app_name=other[1:]
            )
            for other in others.split()
        }
        self.api.set_backend_configs({**without, "http-app": backend})
        await self.api.reload()

    @property
    def node(self) -> Path:
        return self.folder / "node"

    @property
    def supervisor(self) -> int:
        assert self.api._proc is not None
        return self.api._proc.pid

    @property
    def haproxy(self) -> int:
        return children(self.supervisor)[0]

    def show(self, what: str) -> str:
        return AdminSocket(str(self.node / f"{self.supervisor}.sock")).ask(f"show {what}").decode()

    def get(self, path: str = "/", method: str = "GET", host: str = "127.0.0.1") -> Answer:
        connection = http.client.HTTPConnection(host, self.port, timeout=WAIT_S)
        connection.request(method, path)
        reply = connection.getresponse()
        answer = Answer(reply.status, reply.read(), reply.headers)
        connection.close()
        return answer

    async def until(self, path: str, status: int) -> Answer:
        """The first answer with this status."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            answer = await asyncio.to_thread(self.get, path)
            if answer.status == status:
                return answer
            await asyncio.sleep(0.02)
        raise AssertionError(f"{path} never answered {status}")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def gone(*pids: int) -> None:
    """Wait until these processes have ended."""
    deadline = time.monotonic() + _END_S
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            while is_alive(psutil.Process(pid)):
                assert time.monotonic() < deadline, pid
                await asyncio.sleep(0.02)


def holders_of(folder: Path) -> list[int]:
    """Every process that has a file of this folder in its command line or works in it."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            said = (*process.cmdline(), process.cwd())
            if process.pid != os.getpid() and any(str(folder) in text for text in said) and is_alive(process):
                found.append(process.pid)
    return found


def own_address() -> str | None:
    """An address of this machine that is not a loopback one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
    return None if re.match(r"127\.", address) else address


def shorten(folder: Path, module: str, name: str, seconds: float) -> None:
    """Have supervisors that are started from now on wait for less long."""
    _amend_launcher(folder, f"import serve_app.haproxy.{module} as m; m.{name} = {seconds}; ")


def _amend_launcher(folder: Path, code: str) -> None:
    launcher = folder / "front"
    text, start, main = launcher.read_text().partition("from serve_app.haproxy.supervisor import main")
    launcher.write_text(f"{text}{code}{start}{main}")
