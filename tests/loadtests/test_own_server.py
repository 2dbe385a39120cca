"""A server of a command's own, with a stand-in for `tideserve run`."""

import json
import os
import sys
from pathlib import Path

import psutil
import pytest

from loadtests import server as own_server
from serve_app.cli.command_error import CommandError

STAND_IN = """#!{python}
import http.server, json, os, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
parent = int(sys.argv[sys.argv.index("--stop-with-parent") + 1])
assert parent == os.getppid()
answer = {answer!r}
if not answer:
    sys.exit("no such model")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer.encode())
try:
    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
except KeyboardInterrupt:
    print("stopped in order", flush=True)
"""


def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> Path:
    """Have a stand-in that answers so run in place of Python; where its output goes."""
    script = tmp_path / "stand-in"
    script.write_text(STAND_IN.format(python=sys.executable, answer=answer))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return tmp_path / "server.log"


def said(state: str, reason: str | None = None, *, ready: bool = False) -> str:
    model = {"state": state, "phase": None, "reason": reason}
    return json.dumps({"ready": ready, "models": {"tide": model}})


def children() -> list[psutil.Process]:
    return psutil.Process(os.getpid()).children()


def test_it_is_served_while_the_block_runs_and_stopped_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = answering(tmp_path, monkeypatch, said("up", ready=True))
    before, told = children(), list[str]()

    with own_server.own_server(Path("serve.yaml"), log, told.append) as url:
        assert url.startswith("http://127.0.0.1:")
        assert len(children()) == len(before) + 1

    assert children() == before
    assert told == ["tide: up", "stopping the server"]
    assert "stopped in order" in log.read_text()


def test_an_early_end_of_the_server_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = answering(tmp_path, monkeypatch, "")

    with pytest.raises(CommandError, match=r"ended before it was ready:\nno such model"):
        with own_server.own_server(Path("serve.yaml"), log, lambda _: None):
            pytest.fail("it is not ready")


def test_a_model_that_has_failed_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_server, "_FAILED_S", 0.0)
    log = answering(tmp_path, monkeypatch, said("failed", "no weights"))

    with pytest.raises(CommandError, match=r"a model failed: tide: no weights; see .*server.log"):
        with own_server.own_server(Path("serve.yaml"), log, lambda _: None):
            pytest.fail("it is not ready")
