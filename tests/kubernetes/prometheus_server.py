"""A real Prometheus that scrapes as the chart's PodMonitor does, with the chart's rules."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from serve_app.cli.listening import free_port
from tests.kubernetes.tools import PROMETHEUS

_START_S = 30.0


@dataclass(slots=True)
class PrometheusServer:
    """Start it in a folder of its own; `stop` ends it."""

    folder: Path
    process: subprocess.Popen[bytes]
    port: int

    @classmethod
    def start(
        cls, folder: Path, targets: Path, pod_monitor: dict[str, Any], rules: dict[str, Any], namespace: str
    ) -> PrometheusServer:
        """Scrape what the file `targets` lists, each second.

        Args:
            folder: For its data and configuration.
            targets: Ray's own list of its metrics agents, which follows its nodes.
            pod_monitor: The rendered object; its relabelling is done.
            rules: A rendered PrometheusRule.
            namespace: What the operator would put into the label `namespace`.
        """
        [endpoint] = pod_monitor["spec"]["podMetricsEndpoints"]
        (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": rules["spec"]["groups"]}))
        job = {
            "job_name": f"{namespace}/tideserve",
            "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
            "relabel_configs": [{"target_label": "namespace", "replacement": namespace}],
            "metric_relabel_configs": [_snake(rule) for rule in endpoint.get("metricRelabelings", ())],
        }
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [job],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        port = free_port()
        command = [str(PROMETHEUS), f"--config.file={folder / 'prometheus.yaml'}"]
        command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
        with (folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        server = cls(folder, process, port)
        server.wait_until(lambda: server._answers("/-/ready"), lambda: "is ready")
        return server

    def query(self, expr: str, **more: Any) -> list[dict[str, Any]]:
        """The series that `expr` finds now; an AssertionError if Prometheus refuses it."""
        found: list[dict[str, Any]] = self._get("/api/v1/query", query=expr, **more)["result"]
        return found

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The series that `expr` finds over a time."""
        asked = {"query": expr, "start": start, "end": end, "step": step}
        found: list[dict[str, Any]] = self._get("/api/v1/query_range", **asked)["result"]
        return found

    def names(self) -> set[str]:
        """The names of all series it has."""
        return set(self._get("/api/v1/label/__name__/values"))

    def rule_errors(self) -> dict[str, str]:
        """What went wrong in evaluating rules, by their names."""
        groups = self._get("/api/v1/rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert rules, "no rules are loaded"
        return {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")}

    def wait_until(self, true: Callable[[], Any], what: Callable[[], str]) -> None:
        """Poll until `true` is; an AssertionError with Prometheus's log otherwise."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.folder / "prometheus.log").read_text()[-4000:]
            if true():
                return
            time.sleep(0.2)
        log = (self.folder / "prometheus.log").read_text()
        raise AssertionError(f"not in {_START_S:g} s: Prometheus {what()}; its log ends with {log[-2000:]}")

    def stop(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def _get(self, path: str, **query: Any) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{query}: {error.read().decode()}") from None


def _snake(rule: dict[str, Any]) -> dict[str, Any]:
    """A relabelling as Prometheus writes it, from one as its operator does."""
    return {re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower(): value for key, value in rule.items()}
