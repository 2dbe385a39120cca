"""Who reaches what of a running application: its ports and sockets, and Ray without and with the token."""

import fnmatch
import importlib.util
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from serve_app import env
from serve_app.cli.dashboard import Dashboard
from serve_app.cli.ray_token import token_header
from tests.integration.cluster import Running, command_line
from tests.integration.listeners import (
    Port,
    PortRow,
    Socket,
    listeners,
    port_rows,
    role_of,
    socket_rows,
    unexpected,
)

WITHOUT = {"RAY_AUTH_TOKEN": "", "RAY_AUTH_MODE": "disabled"}
WRONG = {"RAY_AUTH_TOKEN": "another", "RAY_AUTH_MODE": "token"}
SUBMIT = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
print("ran", ray.get(ray.remote(num_cpus=0)(lambda: 6 * 7).remote(), timeout=60))
"""
WRITE = """
import sys
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
client.internal_kv_put(b"closed", b"open", True, namespace=b"test", timeout=5)
print("wrote", client.internal_kv_get(b"closed", namespace=b"test", timeout=5))
"""


def of(app: Running) -> list[psutil.Process]:
    return [psutil.Process(app.process.pid), *app.descendants()]


def test_every_port_is_in_the_table_and_bound_no_wider(app: Running) -> None:
    ports, _ = listeners(of(app))

    assert {port.role for port in ports} >= {"HAProxy", "ingress replica", "engine replica", "GCS", "raylet"}
    assert unexpected(ports, port_rows(), named_ports(app)) == []


def named_ports(app: Running) -> dict[str, int]:
    """Those that have a name in the table; `tideserve run` moves some that are taken."""
    [driver] = [process for process in app.descendants() if role_of(process) == "Serve's driver"]
    variables = driver.environ()
    return {
        "http_options.port": app.port,
        **{name: int(variables.get(name, port)) for name, port in env.FAST_PATH_PORTS.items()},
    }


def test_every_socket_is_in_the_table_and_nobody_else_s(app: Running) -> None:
    _, sockets = listeners(of(app))

    assert {socket.role for socket in sockets} >= {"raylet", "engine replica", "ingress replica"}
    wrong = [socket for socket in sockets if socket.role != "HAProxy" and not _as_the_table_says(socket)]
    assert wrong == []


@pytest.mark.skipif(
    importlib.util.find_spec("serve_app.haproxy") is None,
    reason="HAProxy as Ray starts it has an admin socket of mode 666 in a folder that all users share",
)
def test_haproxy_s_sockets_are_nobody_else_s(app: Running) -> None:
    sockets = [socket for socket in listeners(of(app))[1] if socket.role == "HAProxy"]

    assert sockets
    assert [socket for socket in sockets if not _as_the_table_says(socket)] == []


def _as_the_table_says(socket: Socket) -> bool:
    """Whether the table has it, and nobody else can connect to it or put another in its place."""
    modes = [
        row.mode
        for row in socket_rows()
        if row.role == socket.role and fnmatch.fnmatch(socket.path, row.pattern)
    ]
    path = Path(socket.path)
    if not path.exists():  # HAProxy binds beside its path and renames
        path = path.with_name(path.name.split(".sock")[0] + ".sock")
    mode = path.stat().st_mode & 0o777
    private = any(folder.stat().st_mode & 0o077 == 0 for folder in path.parents)
    sticky = bool(path.parent.stat().st_mode & 0o1000)
    return len(modes) == 1 and mode & ~modes[0] == 0 and mode & 0o022 == 0 and (private or sticky)


@pytest.mark.parametrize(
    ("role", "method"),
    [
        ("GCS", "/ray.rpc.ActorInfoGcsService/RegisterActor"),
        ("GCS", "/ray.rpc.InternalKVGcsService/InternalKVPut"),
        ("raylet", "/ray.rpc.NodeManagerService/RequestWorkerLease"),
        ("dashboard agent", "/ray.rpc.ReporterService/MemoryProfiling"),
        ("every Ray worker", "/ray.rpc.CoreWorkerService/PushTask"),
        ("Serve's driver", "/ray.rpc.CoreWorkerService/PushTask"),
        ("engine replica", "/ray.rpc.CoreWorkerService/PushTask"),
        # It takes pickled arguments, on all interfaces.
        ("engine replica", "/ray.serve.ASGIService/HandleRequest"),
        ("ingress replica", "/ray.serve.ASGIService/HandleRequest"),
    ],
)
def test_ray_s_ports_ask_for_the_token(app: Running, role: str, method: str) -> None:
    by_process: dict[int, list[int]] = {}
    for port in listeners(of(app))[0]:
        if port.role == role:
            by_process.setdefault(port.pid, []).append(port.number)
    assert by_process
    for pid, numbers in by_process.items():
        for metadata in ([], [("authorization", "Bearer another")]):
            codes = {_called(number, method, metadata) for number in numbers}
            assert grpc.StatusCode.UNAUTHENTICATED in codes, pid
            assert grpc.StatusCode.OK not in codes, pid


def _called(number: int, method: str, metadata: list[tuple[str, str]]) -> grpc.StatusCode:
    with grpc.insecure_channel(f"127.0.0.1:{number}") as channel:
        try:
            channel.unary_unary(method)(b"", timeout=5, metadata=metadata)
        except grpc.RpcError as error:  # of the ports of HTTP, too
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


@pytest.mark.parametrize("variables", [WITHOUT, WRONG], ids=["without", "wrong"])
def test_ray_s_own_client_writes_nothing_without_the_token(app: Running, variables: dict[str, str]) -> None:
    done = as_a_client(app, WRITE, variables)

    assert done.returncode != 0
    assert done.stdout == ""
    assert "InvalidAuthToken" in done.stderr, done.stderr


@pytest.mark.parametrize("program", [SUBMIT, WRITE], ids=["submit", "write"])
def test_the_token_s_owner_runs_code(app: Running, program: str) -> None:
    done = as_a_client(app, program, {})

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("ran 42", "wrote b'open'")


def as_a_client(app: Running, program: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    [gcs] = [port for port in listeners(of(app))[0] if port.role == "GCS"]
    environment = {**os.environ, **env.LOCAL, "RAY_TMPDIR": str(app.folder), **variables}
    environment = {name: value for name, value in environment.items() if value}
    return subprocess.run(
        [sys.executable, "-c", program, f"127.0.0.1:{gcs.number}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer another"}], ids=["without", "wrong"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "serve/applications/"),
        ("PUT", "serve/applications/"),
        ("DELETE", "serve/applications/"),
        ("POST", "jobs/"),
    ],
)
def test_the_dashboard_asks_for_the_token(
    app: Running, method: str, path: str, headers: dict[str, str]
) -> None:
    request = urllib.request.Request(f"{app.dashboard}/api/{path}", b"{}", headers, method=method)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    with caught.value as error:
        assert error.code == (403 if headers else 401)
    assert "tideserve" in Dashboard(app.dashboard).details()["applications"]


def test_a_browser_signs_in_and_may_only_read(app: Running) -> None:
    address = f"{app.dashboard}/api/serve/applications/"
    with httpx.Client(headers={"User-Agent": "Mozilla/5.0"}, timeout=30) as browser:
        assert browser.get(app.dashboard).status_code == 200  # the page that asks for it
        assert browser.get(address).status_code == 401

        signed_in = browser.post(f"{app.dashboard}/api/authenticate", headers=token_header(app.dashboard))

        assert signed_in.status_code == 200
        [cookie] = signed_in.headers.get_list("set-cookie")
        assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}
        assert browser.get(address).status_code == 200
        assert browser.put(address, json={"applications": []}).status_code == 405


def test_ray_s_own_command_finds_the_token(app: Running) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ray.serve.scripts", "status", "--address", app.dashboard],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "status: RUNNING" in done.stdout


def test_the_token_is_on_no_command_line_or_file(app: Running) -> None:
    token = token_header(app.dashboard)["authorization"].removeprefix("Bearer ")

    assert not any(token in command_line(process) for process in of(app))
    found = subprocess.run(
        ["grep", "-rl", token, str(app.folder)], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""


ROWS = [PortRow("engine replica", "any", 1, 1), PortRow("engine replica", "any", 1, 2)]


def port(address: str, number: int = 1234, role: str = "engine replica") -> Port:
    return Port(role, address, number, 1)


def test_a_port_that_is_not_in_the_table_is_seen() -> None:
    known = [port("127.0.0.1"), port("::", 1235)]

    assert unexpected(known, ROWS, {}) == []
    assert unexpected([*known, port("127.0.0.1", 1236)], ROWS, {}) == [port("127.0.0.1", 1236)]
    assert unexpected([port("127.0.0.1", role="a new process")], ROWS, {})


def test_a_port_bound_wider_than_its_row_is_seen() -> None:
    assert unexpected([port("0.0.0.0"), port("::", 1235)], ROWS, {}) == [port("::", 1235)]


def test_a_port_of_another_number_is_seen() -> None:
    rows = [PortRow("HAProxy", "`http_options.port`", 1, 0), PortRow("HAProxy", "30000\u201331000", 1, 0)]

    assert unexpected([port("127.0.0.1", 8000, "HAProxy")], rows, {"http_options.port": 8000}) == []
    assert unexpected([port("127.0.0.1", 30500, "HAProxy")], rows, {"http_options.port": 8000}) == []
    assert unexpected([port("127.0.0.1", 8001, "HAProxy")], rows, {"http_options.port": 8000})
