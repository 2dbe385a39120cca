"""What plays Ray's dashboard."""

import copy
import json
from dataclasses import dataclass, field
from typing import Any

from ray.serve.schema import ServeDeploySchema

from tests.http_server import Answer


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
