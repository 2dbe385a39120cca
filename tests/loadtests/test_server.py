"""What is asked of a server before the first request."""

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadtests import server as own_server
from loadtests.plan import Planned
from loadtests.server import Served, ServerError, ask_server, check_plan, choose_model
from serve_app.cli import CommandError

TWO = Served({"tide": 2048, "ebb": None})
ANSWERS: dict[str, tuple[int, str]] = {}


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        status, text = ANSWERS.get(request.path, (404, "nothing here"))
        headers = {"Location": text} if status == 307 else {}
        return web.Response(status=status, text=text, headers=headers)

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    ANSWERS.clear()
    async with TestServer(application) as server:
        yield str(server.make_url("")).rstrip("/")


def request(kind: str = "a", model: str | None = None, prompt: int = 10, output: int = 10) -> Planned:
    return Planned(0, 0.0, kind, model, "completions", prompt, output)


async def test_models_context_lengths_and_version_are_read(url: str) -> None:
    ANSWERS["/v1/models"] = (200, '{"data": [{"id": "tide", "max_model_len": 2048}, {"id": "ebb"}]}')
    ANSWERS["/openapi.json"] = (200, '{"info": {"title": "Tideserve", "version": "0.1.0"}}')

    async with aiohttp.ClientSession() as session:
        assert await ask_server(session, url) == Served({"tide": 2048, "ebb": None}, "Tideserve 0.1.0")


async def test_a_version_that_is_hidden_is_not_missed(url: str) -> None:
    ANSWERS["/v1/models"] = (200, '{"data": [{"id": "tide"}]}')

    async with aiohttp.ClientSession() as session:
        assert (await ask_server(session, url)).version == ""


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((401, "who are you?"), "answers 401: who are you"),
        ((307, "https://x/v1/models"), "redirects to https://x/v1/models; give --url accordingly"),
        ((200, "<html>"), "but not with JSON"),
        ((200, "[]"), "not as the OpenAI API does"),
        ((200, '{"data": []}'), "lists no model"),
        ((200, '{"data": [{"id": "a", "max_model_len": "long"}]}'), "not as the OpenAI API does"),
    ],
)
async def test_answers_that_are_not_the_openai_api_are_refused(
    url: str, answer: tuple[int, str], told: str
) -> None:
    ANSWERS["/v1/models"] = answer

    async with aiohttp.ClientSession() as session:
        with pytest.raises(ServerError, match=told):
            await ask_server(session, url)


async def test_an_unreachable_server_is_an_error() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ServerError, match=r"nothing answers at http://127\.0\.0\.1:9/v1/models"):
            await ask_server(session, "http://127.0.0.1:9")


def test_the_only_model_need_not_be_named() -> None:
    assert choose_model(Served({"tide": None}), None) == "tide"
    assert choose_model(TWO, "ebb") == "ebb"
    with pytest.raises(ServerError, match="give --model, one of tide, ebb"):
        choose_model(TWO, None)
    with pytest.raises(ServerError, match="--model = 'flow': not served; there are tide, ebb"):
        choose_model(TWO, "flow")


def test_a_plan_is_checked_against_models_and_their_context() -> None:
    check_plan([request(prompt=2000, output=48), request(model="ebb", prompt=10**6)], TWO, "tide")

    with pytest.raises(ServerError, match="kind 'b': model = 'flow' is not served; there are tide, ebb"):
        check_plan([request("b", model="flow")], TWO, "tide")
    with pytest.raises(
        ServerError,
        match="kind 'a': 2000 tokens of a prompt and 49 of its answer exceed max_model_len = 2048 of tide",
    ):
        check_plan([request(), request(prompt=2000, output=49)], TWO, "tide")


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
