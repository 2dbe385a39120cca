"""A model's part of the status document, and the gauges of the same numbers."""

from collections.abc import Mapping
from typing import Any

from serve_app.controller.cold_starts import ColdStarts
from serve_app.policy.decide import Decision
from serve_app.policy.reports import Snapshot
from serve_app.wire.served_models import ServedModel


def model_status(
    model: ServedModel, snapshot: Snapshot, decision: Decision, starts: ColdStarts
) -> dict[str, Any]:
    """Return the model's part of the status document."""
    warm_s, cold_s = (starts.on(warm_node=kind).phases_s() for kind in (True, False))
    return {
        "model": model.name,
        "mode": model.knobs.mode,
        "identity": model.identity,
        "wanted": decision.wanted,
        "target": decision.target,
        "ready": snapshot.ready,
        "starting": snapshot.starting,
        "pending": snapshot.pending,
        "pending_s": round(snapshot.pending_s),
        "draining": snapshot.draining,
        "reason": snapshot.pending_reason,
        "cold_start_s": snapshot.cold_start_s,
        "phases_s": (warm_s or cold_s) if snapshot.warm_node else (cold_s or warm_s),
        "warm_node": snapshot.warm_node,
        "warm_node_start_s": snapshot.warm_node_start_s,
        "warm_node_phases_s": warm_s,
        "cold_node_start_s": snapshot.cold_node_start_s,
        "cold_node_phases_s": cold_s,
    }


def gauges(model: ServedModel, status: Mapping[str, Any], decision: Decision) -> dict[str, float]:
    """Return the values of the model's gauges, by the names in `AutoscalingMetrics`."""
    counts = ("wanted", "target", "ready", "starting", "pending", "draining")
    values = {f"{name}_replicas": float(status[name]) for name in counts}
    values["replica_capacity_rps"] = decision.signals["replica_capacity_rps"]
    values["background_work_seconds"] = decision.signals["background_work_s"]
    values["gpus_per_replica"] = model.resources.get("GPU", 0.0)
    values["warm_node"] = float(status["warm_node"])
    for name in ("cold_start", "warm_node_start", "cold_node_start"):
        if status[f"{name}_s"] is not None:
            values[f"{name}_seconds"] = status[f"{name}_s"]
    share = {"version_share": status["canary"]["share"]} if model.version_of else {}
    return {f"autoscaling_{name}": value for name, value in values.items()} | share
