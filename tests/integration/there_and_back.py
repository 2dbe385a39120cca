"""One run of the chart's application from zero to two replicas and back, under load and a Prometheus."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.integration.cluster import ZYGOTE, own_ports
from tests.kubernetes.chart import LAPTOP, of_kind, ray_service, serve_config
from tests.kubernetes.prometheus_server import PrometheusServer
from tests.kubernetes.tools import PROMETHEUS

MODEL = "tideserve-tiny"
NAMESPACE = "llm"
KNOBS = {
    "min_replicas": 0,
    "max_replicas": 2,
    "queue_target_per_replica": 4,
    "ttft_target_s": 0.5,
    "itl_target_s": 0.2,
    "downscale_delay_s": 6,  # longer than the one replica may come up after the other
    "downscale_to_zero_delay_s": 3,
    "keep_alive_interval_s": 0.5,  # a start is over within two seconds or three
}
SCENARIO = {
    "name": "there-and-back",
    "arrivals": [
        {"shape": "burst", "for_s": 1, "requests": 8},
        # Past the cold start, ten seconds longer without a zygote: a rate is seen only of what goes on
        # between two scrapes.
        {"shape": "steady", "for_s": 16 if ZYGOTE else 30, "rate": 1.5},
    ],
    "requests": [
        {"kind": "stays", "share": 2, "prompt_tokens": 40, "output_tokens": 20},
        # Long enough for a hundredth token, with a prompt that the prefix cache has after the first.
        {"kind": "long", "prompt_tokens": 200, "shared_prefix_tokens": 160, "output_tokens": 110},
        {"kind": "leaves", "output_tokens": 200, "leave": {"share": 1, "after_tokens": 5}},
    ],
    "slos": {
        "ttft_ms": {"p99": 110_000},
        "cold_wait_s": {"p99": 110},
        "itl_ms": {"p50": 500},
        "hundred_tokens_s": None,
        "error_rate": 0.01,
    },
    "scaling": {"starts_at": 0, "reaches": 2, "returns_to": 0, "within_s": 90},
    "client": {"lag_p99_ms": 500, "lag_max_ms": 5000},
}
_MONITORED = ("monitoring.podMonitor.enabled=true", "monitoring.prometheusRule.enabled=true")


@dataclass(frozen=True, slots=True)
class ThereAndBack:
    """What came of it."""

    done: subprocess.CompletedProcess[str]
    out: Path
    prometheus: PrometheusServer | None
    """It has seen everything, and still answers; None where there is no Prometheus."""

    @property
    def log(self) -> str:
        """What the server wrote."""
        return (self.out / "server.log").read_text(errors="replace")

    @property
    def document(self) -> dict[str, Any]:
        """The run's own record."""
        document: dict[str, Any] = json.loads((self.out / "run.json").read_text())
        return document


@contextmanager
def there_and_back() -> Iterator[ThereAndBack]:
    """Run `tideserve loadtest` with a server of its own on the `serveConfigV2` of the laptop values.

    One node stands for all pods: it has the resources of every worker group.
    """
    folder = Path(tempfile.mkdtemp(prefix="ts-", dir="/tmp"))
    config, scenario, out = folder / "serve.yaml", folder / "scenario.yaml", folder / "out"
    knobs = f"models.tiny.autoscaling={json.dumps(KNOBS)}"
    ledger = {"enabled": True, "url": f"sqlite:///{folder}/usage.db", "gpu_hour_prices": {"cpu": 1}}
    values = (knobs, f"app.zygote={json.dumps(ZYGOTE)}", f"app.ledger={json.dumps(ledger)}")
    config.write_text(yaml.safe_dump(serve_config(LAPTOP, *values)))
    scenario.write_text(yaml.safe_dump(SCENARIO))
    groups = ray_service(LAPTOP)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    resources = {name: int(amount) for group in groups for name, amount in group["resources"].items()}
    slots = {name: amount for name, amount in resources.items() if name.endswith(":replicas")}
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "serve_app.cli.main", "loadtest", str(scenario)]
    prometheus = _prometheus(folder)
    try:
        done = subprocess.run(
            [*command, "--serve", str(config), "--out", str(out)],
            env={
                **os.environ,
                **own_ports(),
                "PYTHONPATH": root,
                "RAY_TMPDIR": str(folder),
                "RAY_OVERRIDE_RESOURCES": json.dumps(slots),
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        yield ThereAndBack(done, out, prometheus)
    finally:
        if prometheus is not None:
            prometheus.stop()


def _prometheus(folder: Path) -> PrometheusServer | None:
    """One that scrapes the cluster that will be in `folder`."""
    if PROMETHEUS is None:
        return None
    [monitor] = of_kind("PodMonitor", LAPTOP, *_MONITORED)
    [rules] = of_kind("PrometheusRule", LAPTOP, *_MONITORED)
    own = folder / "prometheus"
    own.mkdir()
    # Ray lists its metrics agents there once it runs.
    targets = folder / "ray/prom_metrics_service_discovery.json"
    return PrometheusServer.start(own, targets, monitor, rules, NAMESPACE)
