from __future__ import annotations

import errno
import io
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from serve_app.cli import progress


@contextmanager
def answering(status: int, body: bytes) -> Iterator[int]:
    """A port on which one request gets `body`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/ready"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        yield server.server_port
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (200, {"ready": True, "models": {"a": {"state": "up"}}}, (True, {"a": {"state": "up"}})),
        (503, {"ready": False, "models": {"a": {}}}, (False, {"a": {}})),
        (404, {"error": {}}, (False, {})),
        (200, [], (False, {})),
    ],
)
def test_progress_is_read_off_ready_whatever_its_status(
    status: int, body: object, answer: tuple[bool, dict[str, object]]
) -> None:
    with answering(status, json.dumps(body).encode()) as port:
        assert progress.ask_ready(f"http://127.0.0.1:{port}") == answer


@pytest.mark.parametrize("status", [200, 503])
def test_a_proxy_that_has_no_application_yet_is_no_progress(status: int) -> None:
    with answering(status, b"<html>Service Unavailable</html>") as port:
        assert progress.ask_ready(f"http://127.0.0.1:{port}") == (False, {})


def test_a_server_that_does_not_listen_yet_is_no_progress() -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]

    assert progress.ask_ready(f"http://127.0.0.1:{port}") == (False, {})


def test_a_terminal_that_is_gone_does_not_keep_it_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("sys.stdout", Gone())
    progress.say("stopping")


def test_no_proxy_is_asked_for_the_server_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with answering(200, b'{"ready": true, "models": {}}') as port:
        assert progress.ask_ready(f"http://127.0.0.1:{port}") == (True, {})


class Server:
    """Answers of `/ready`, and the time, for `Progress`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.ready = False
        self.models: dict[str, Any] = {}
        monkeypatch.setattr(progress, "ask_ready", lambda url: (self.ready, self.models))
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)
        self.progress = progress.Progress("http://127.0.0.1:8000")

    def step(self, after_s: float, state: str, phase: str | None = None, reason: str | None = None) -> bool:
        self.now += after_s
        self.ready = state == "up"
        self.models = {"tide": {"state": state, "phase": phase, "reason": reason}}
        return self.progress.step()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def test_each_phase_is_printed_once_with_the_seconds_and_the_address_at_the_end(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.step(2.0, "loading", "imports")
    server.step(2.0, "loading", "imports")
    server.step(2.0, "loading", "weights_and_kv_cache")
    server.step(2.0, "up")
    server.step(2.0, "up")

    assert capsys.readouterr().out.splitlines() == [
        "tideserve:   2.0 s  tide: imports",
        "tideserve:   6.0 s  tide: weights and kv cache",
        "tideserve: ready after 8.0 s: http://127.0.0.1:8000/docs",
    ]
    assert server.progress.ready_at == 108.0


def test_a_model_that_fails_is_reported_once_with_the_reason(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not server.step(1.0, "loading", "imports", "not yet")
    assert server.step(1.0, "failed", reason="imports: no such file")
    assert not server.step(1.0, "failed", reason="imports: no such file")

    assert capsys.readouterr().out.splitlines()[-1] == (
        "tideserve:   2.0 s  tide: failed: imports: no such file"
    )


def test_a_phase_that_lasts_is_explained_after_half_a_minute(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.step(0.0, "loading", "waiting_for_a_node", "no GPU is free")
    server.step(20.0, "loading", "waiting_for_a_node", "no GPU is free")
    assert "no GPU is free" not in capsys.readouterr().out

    server.step(20.0, "loading", "waiting_for_a_node", "no GPU is free")
    server.step(40.0, "loading", "waiting_for_a_node", "no GPU is free")

    assert capsys.readouterr().out == "tideserve:  40.0 s  tide: still waiting for a node: no GPU is free\n"


def test_a_start_that_fails_is_reported_with_the_reason_while_another_is_tried(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """`/ready` then says `loading`, in phase `failed`."""
    assert server.step(1.0, "loading", "failed", "configuration: no such folder")
    assert not server.step(1.0, "loading", "imports")

    assert "tide: failed: configuration: no such folder" in capsys.readouterr().out
