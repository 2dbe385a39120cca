"""A small HTTP server for commands that talk to one, and one that plays Ray's dashboard."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from ray.serve.schema import ServeDeploySchema

Answer = tuple[int, Any]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Callable[[str, str, bytes], Answer], keys: list[str | None]) -> None:
        self.answer, self.keys = answer, keys
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    def _handle(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.keys.append(self.headers["Authorization"])
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, reply = self.server.answer(self.command, self.path, body)
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", str(reply))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = _handle  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(
    answer: Callable[[str, str, bytes], Answer], keys: list[str | None] | None = None
) -> Iterator[str]:
    """The URL of a server that answers (method, path, body) with (status, JSON or bytes).

    It appends the `Authorization` of each request to `keys`, and redirects to the body of a 3xx.
    """
    with _Server(answer, [] if keys is None else keys) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@dataclass
class FakeRay:
    """Serve's part of the dashboard: takes configurations as Ray does, and applies them a few reads later."""

    details: dict[str, Any]
    reads_until_applied: int = 2
    sent: list[dict[str, Any]] = field(default_factory=list)
    refusal: Answer | None = None
    outcome: str = "HEALTHY"
    _steps: int = 0

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        assert path == "/api/serve/applications/"
        if method == "GET":
            self._advance()
            return 200, self.details
        if self.refusal is not None:
            return self.refusal
        document = json.loads(body)
        ServeDeploySchema.model_validate(document)
        self.sent.append(document)
        configs = {app["name"]: app for app in document["applications"]}
        running = self.details["applications"]
        for name in [name for name, app in running.items() if app["source"] == "declarative"]:
            if name in configs:
                running[name]["deployed_app_config"] = copy.deepcopy(configs[name])
            else:
                del running[name]
        self._steps = self.reads_until_applied + 1
        return 200, b""

    def _advance(self) -> None:
        """One turn of Ray's controller: first it sees the change, then replicas take it over."""
        if self._steps == 0:
            return
        self._steps -= 1
        for app in self.details["applications"].values():
            ingress = app["deployments"].get("Ingress")
            if ingress is None or self._steps == self.reads_until_applied:
                continue
            for deployment in app["deployed_app_config"]["deployments"]:
                if deployment["name"] == "Ingress" and "user_config" in deployment:
                    ingress["deployment_config"]["user_config"] = deployment["user_config"]
            ingress["status"] = self.outcome if self._steps == 0 else "UPDATING"
            app["status"] = {"HEALTHY": "RUNNING"}.get(ingress["status"], "DEPLOYING")


def application(name: str, *models: str, user_config: Any = None, status: str = "RUNNING") -> dict[str, Any]:
    """What Ray tells of an application of ours; without a `user_config` its ingress is not in its file."""
    deployments = [] if user_config is None else [{"name": "Ingress", "user_config": user_config}]
    config = {
        "name": name,
        "route_prefix": f"/{name}",
        "import_path": "serve_app.app:build",
        "autoscaling_policy": {"policy_function": "serve_app.controller.serve_policy:ServePolicy"},
        "runtime_env": {"env_vars": {"SECRET": "of the application"}},
        "args": {"models": [{"name": model, "device": "cpu"} for model in models]},
        "deployments": deployments,
    }
    return entry(
        name,
        config,
        status,
        Ingress={"status": "HEALTHY", "message": "", "deployment_config": {"user_config": user_config or {}}},
    )


def entry(name: str, config: dict[str, Any] | None, status: str, **deployments: Any) -> dict[str, Any]:
    return {
        "name": name,
        "status": status,
        "message": "",
        "source": "declarative",
        "deployed_app_config": config,
        "deployments": deployments,
    }


def details(*applications: dict[str, Any]) -> dict[str, Any]:
    """Serve's details around `applications`, with options that are not the defaults."""
    return {
        "controller_info": {"node_id": "n"},
        "proxy_location": "HeadOnly",
        "http_options": {"host": "0.0.0.0", "port": 9123, "request_timeout_s": 30.0},
        "grpc_options": {"port": 9001, "grpc_servicer_functions": []},
        "proxies": {},
        "target_capacity": None,
        "restores_unset_config_options": True,
        "applications": {app["name"]: app for app in applications},
    }
