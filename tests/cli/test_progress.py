import errno
import io
import socket
from typing import Any

import pytest

from serve_app.cli import http_client, progress
from tests.http_server import serving


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (200, {"ready": True, "models": {"a": {"state": "up"}}}, (True, {"a": {"state": "up"}})),
        (503, {"ready": False, "models": {"a": {}}}, (False, {"a": {}})),
        (200, b"[" * 100_000, (False, {})),
        (404, {"error": {}}, (False, {})),
        (200, [], (False, {})),
        (200, b"<html>No application yet</html>", (False, {})),
        (503, b"<html>Service Unavailable</html>", (False, {})),
    ],
)
def test_progress_is_read_off_ready_whatever_its_status(
    status: int, body: object, answer: tuple[bool, dict[str, object]]
) -> None:
    with serving(lambda method, path, _: (status if path == "/ready" else 500, body)) as url:
        assert progress.ask_ready(url) == answer


def test_a_server_that_does_not_listen_yet_is_no_progress() -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]

    assert progress.ask_ready(f"http://127.0.0.1:{port}") == (False, {})


def test_lost_terminal_does_not_prevent_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("sys.stdout", Gone())
    progress.say("stopping")


def test_no_proxy_is_asked_for_the_server_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr(http_client, "is_loopback", lambda host: False)  # as with --host 192.0.2.2
    with serving(lambda *_: (200, {"ready": True, "models": {}})) as url:
        assert progress.ask_ready(url) == (True, {})


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


def test_each_phase_is_printed_once_with_seconds(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.step(2.0, "loading", "imports")
    server.step(2.0, "loading", "imports")
    server.step(2.0, "loading", "weights_and_kv_cache")
    server.step(2.0, "up")
    server.step(2.0, "up")

    assert capsys.readouterr().out.splitlines() == [
        "tideserve:   2.0 s  tide: imports",
        "tideserve:   6.0 s  tide: weights and kv cache",
        "tideserve: ready after 8.0 s: http://127.0.0.1:8000/docs",
        "tideserve: open the page in a browser: http://127.0.0.1:8000/",
    ]
    assert server.progress.ready_at == 108.0


@pytest.mark.parametrize("state", ["failed", "loading"])  # the latter while another start is tried
def test_a_model_that_fails_is_reported_once_with_the_reason(
    server: Server, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    assert not server.step(1.0, "loading", "imports", "not yet")
    assert server.step(1.0, state, "failed", reason="imports: no such file")
    assert not server.step(1.0, state, "failed", reason="imports: no such file")

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
