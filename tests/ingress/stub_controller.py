"""Serve's controller, as an ingress replica sends reports to it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID, ReplicaMetricReport
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.config import HTTPOptions

from serve_app.ingress import ingress_deployment

REPLICA = ReplicaID("i1", DeploymentID("Ingress", "shop"))


class StubController:
    """Keeps the reports it gets. Set `fails` to have it raise instead, as when Ray cannot be reached.

    `host` is where the application listens.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports: list[ReplicaMetricReport] = []
        self.came = asyncio.Event()
        self.fails: Exception | None = None
        self.host = "127.0.0.1"
        self.get_http_config = SimpleNamespace(remote=self._http_config)
        self.record_autoscaling_metrics_from_replica = SimpleNamespace(remote=self._record)
        monkeypatch.setattr(ingress_deployment.ray, "get_actor", self._actor)

    def _actor(self, name: str, namespace: str) -> "StubController":
        assert (name, namespace) == (SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
        return self

    async def _http_config(self) -> HTTPOptions:
        return HTTPOptions(host=self.host)

    def _record(self, report: ReplicaMetricReport) -> None:
        if self.fails is not None:
            raise self.fails
        self.reports.append(report)
        self.came.set()

    def values(self, name: str) -> list[Any]:
        """What the reports say of `name`, in order."""
        return [report.metrics[name][0].value for report in self.reports]
