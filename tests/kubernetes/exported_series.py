"""Every series there is to ask for, with its labels: those our code registers, and those of Ray's nodes."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ray.dashboard.consts import GPU_TAG_KEYS, NODE_TAG_KEYS
from ray.util import metrics

from serve_app.telemetry.autoscaling_metrics import COUNTERS, GAUGES, AutoscalingMetrics
from serve_app.telemetry.batch_metrics import BatchMetrics
from serve_app.telemetry.replica_metrics import INTER_TOKEN_S, ApiKeyMetrics, EngineMetrics, IngressMetrics
from serve_app.telemetry.traces import dropped_spans

SCRAPED = frozenset({"namespace", "pod", "instance", "job"})
"""What a scrape adds to every series."""
MAKERS = frozenset(
    f"serve_app/telemetry/{name}.py"
    for name in ("replica_metrics", "autoscaling_metrics", "batch_metrics", "traces")
)
"""Files that use Ray's metrics, all of them on behalf of what `registered` makes."""
_REPORTER = "ray.dashboard.modules.reporter.reporter_agent"


def registered() -> list[Any]:
    """Our metrics, as Ray's own objects: made as the processes that export them make them, without a Ray."""
    found: list[Any] = []
    make = metrics.Metric.__init__

    def note(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        found.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics.Metric, "__init__", note)
        EngineMetrics("model", "replica")
        IngressMetrics("model", "replica")
        ApiKeyMetrics("replica")
        policy = AutoscalingMetrics()
        for name, (_, labels) in GAUGES.items():
            policy.set_gauge(name, 0.0, **dict.fromkeys(labels, ""))
        for name, (_, labels) in COUNTERS.items():
            policy.count(name, **dict.fromkeys(labels, ""))
        BatchMetrics("replica")
        dropped_spans("replica")
    return found


def exported() -> dict[str, frozenset[str]]:
    """Names of series and their labels, histograms as their three parts."""
    series: dict[str, frozenset[str]] = {}
    for metric in registered():
        name, labels = metric.info["name"], frozenset(metric.info["tag_keys"]) | SCRAPED
        if isinstance(metric, metrics.Histogram):
            series |= {f"{name}_sum": labels, f"{name}_count": labels, f"{name}_bucket": labels | {"le"}}
        else:
            series[name] = labels
    return series | _of_rays_nodes()


def bounds() -> dict[str, tuple[float, ...]]:
    """The bucket bounds of our histograms."""
    found = {m.info["name"]: tuple(m.boundaries) for m in registered() if isinstance(m, metrics.Histogram)}
    return found | {"llm_inter_token_seconds": INTER_TOKEN_S}


def where_metrics_are_made(root: Path) -> set[str]:
    """Files of the application that import Ray's metric classes."""
    return {
        path.relative_to(root).as_posix()
        for path in (root / "serve_app").rglob("*.py")
        if "from ray.util.metrics import" in path.read_text("utf-8")
    }


def _of_rays_nodes() -> dict[str, frozenset[str]]:
    """The gauges of Ray's node reporter, read from its source: to import it takes seconds."""
    spec = find_spec(_REPORTER)
    assert spec is not None
    assert spec.origin is not None
    tags = {"GPU_TAG_KEYS": GPU_TAG_KEYS, "NODE_TAG_KEYS": NODE_TAG_KEYS}
    series = {}
    for node in ast.walk(ast.parse(Path(spec.origin).read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Gauge":
            name, keys = node.args[0], node.args[3]
            if isinstance(name, ast.Constant) and isinstance(keys, ast.Name) and keys.id in tags:
                series["ray_" + str(name.value)] = frozenset(tags[keys.id]) | SCRAPED
    return series
