"""The key of the environment, and that the commands that speak to the API send it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from serve_app import env
from serve_app.cli.api_key import authorization
from serve_app.cli.main import main
from serve_app.settings import SettingsError


def test_the_key_is_a_bearer_token() -> None:
    assert authorization({env.API_KEY: " sk-tide=/1\n"}) == {"Authorization": "Bearer sk-tide=/1"}


@pytest.mark.parametrize("given", [{}, {env.API_KEY: ""}, {env.API_KEY: " \n"}])
def test_without_a_key_nothing_is_sent(given: dict[str, str]) -> None:
    assert authorization(given) == {}


@pytest.mark.parametrize("key", ["sk-one\nsk-two", "sk-one\r\nHost: x", "sk one", "schlüssel", "sk\x00"])
def test_a_key_that_no_header_can_carry_is_told_and_not_shown(key: str) -> None:
    with pytest.raises(SettingsError) as error:
        authorization({env.API_KEY: key})

    assert error.value.problems == ["OPENAI_API_KEY: must be on one line of printable ASCII without spaces"]


@contextmanager
def noting(seen: list[str | None], location: str | None = None) -> Iterator[str]:
    """The URL of a server that notes `Authorization`, and answers like `/autoscaling/decisions`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            body = json.dumps({"autoscaler": None, "decisions": []}).encode()
            self.send_response(302 if location else 200)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_explain_sends_it_and_not_to_where_it_is_redirected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.API_KEY, "sk-tide")
    asked: list[str | None] = []
    elsewhere: list[str | None] = []

    with noting(elsewhere) as other, noting(asked, location=other) as url:
        assert main(["explain", "--url", url]) == 0

    assert (asked, elsewhere) == (["Bearer sk-tide"], [None])
