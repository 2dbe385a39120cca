from __future__ import annotations

import json
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from serve_app.cli.command_error import CommandError
from serve_app.cli.dashboard import Dashboard, default_address
from tests.cli.rest import Answer, serving


def test_the_address_is_rays_variable_or_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_DASHBOARD_ADDRESS", raising=False)
    assert default_address() == "http://127.0.0.1:8265"

    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", "http://head:8265")
    assert default_address() == "http://head:8265"


@pytest.mark.parametrize("address", ["head:8265", "ray://head:10001", "", "auto"])
def test_an_address_that_is_no_url_of_a_dashboard_is_refused(address: str) -> None:
    with pytest.raises(
        CommandError, match=r"--address = .*: must be the URL of the dashboard, such as http://"
    ):
        Dashboard(address)


def test_details_are_read_and_documents_sent_where_ray_has_them() -> None:
    seen = []

    def answer(method: str, path: str, body: bytes) -> Answer:
        seen.append((method, path, body))
        return 200, {"applications": {}} if method == "GET" else b""

    with serving(answer) as url:
        dashboard = Dashboard(url + "/")
        assert dashboard.address == url
        assert dashboard.details() == {"applications": {}}
        dashboard.deploy({"applications": []})

    assert [(method, path) for method, path, _ in seen] == [
        ("GET", "/api/serve/applications/"),
        ("PUT", "/api/serve/applications/"),
    ]
    assert json.loads(seen[1][2]) == {"applications": []}


def test_an_address_where_nothing_listens_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    with pytest.raises(CommandError) as caught:
        Dashboard(url).details()

    assert str(caught.value).startswith(f"no Ray dashboard at {url}: ")
    assert "RAY_DASHBOARD_ADDRESS" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dashboard_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(CommandError, match="timed out"):
            Dashboard(url, timeout_s=0.05).details()


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b"{}", b'{"applications": []}'])
def test_a_server_that_is_no_dashboard_is_told(body: bytes) -> None:
    with (
        serving(lambda *_: (200, body)) as url,
        pytest.raises(CommandError, match="answers, but not as Ray's dashboard does"),
    ):
        Dashboard(url).details()


def test_what_ray_refuses_is_told_on_one_line_and_cut() -> None:
    with serving(lambda *_: (400, b"1 validation error\n  for ServeDeploySchema " + b"x" * 999)) as url:
        with pytest.raises(CommandError) as caught:
            Dashboard(url).deploy({})

    assert str(caught.value).startswith(
        f"{url} answers 400 Bad Request: 1 validation error for ServeDeploySchema xxx"
    )
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("status", [401, 403])
def test_a_cluster_that_asks_for_its_token_says_where_to_put_it(status: int) -> None:
    with serving(lambda *_: (status, b"Unauthorized")) as url:
        with pytest.raises(CommandError) as caught:
            Dashboard(url).details()

    assert str(caught.value).startswith(f"{url} requires its cluster's token ({status} ")
    assert "RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to the file that holds it" in str(caught.value)


def test_the_token_goes_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a-token")
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"applications": {}}')

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        Dashboard(f"http://127.0.0.1:{server.server_port}").details()
        thread.join()

    assert seen == ["Bearer a-token"]
