"""What is published about a model after each decision: its status document, and its metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve_app.policy.decide import Decision
from serve_app.policy.snapshot import Snapshot
from serve_app.wire.served_models import ServedModel


def model_status(
    model: ServedModel, snapshot: Snapshot, decision: Decision, phases_s: Mapping[str, float]
) -> dict[str, Any]:
    """Return the model's part of the status document; `phases_s` are the typical seconds of a start."""
    capacity = snapshot.capacity
    return {
        "model": model.name,
        "mode": model.knobs.mode,
        "wanted": decision.wanted,
        "target": decision.target,
        "ready": snapshot.ready,
        "starting": capacity.starting,
        "pending": capacity.pending,
        "pending_s": round(capacity.pending_s),
        "draining": snapshot.draining,
        "reason": capacity.reason,
        "cold_start_s": snapshot.cold_start_s,
        "phases_s": phases_s,
    }


def gauges(model: ServedModel, snapshot: Snapshot, decision: Decision) -> dict[str, float]:
    """Return the values of the model's gauges, by the names in `AutoscalingMetrics`."""
    values = {
        "wanted_replicas": float(decision.wanted),
        "target_replicas": float(decision.target),
        "ready_replicas": float(snapshot.ready),
        "starting_replicas": float(snapshot.capacity.starting),
        "pending_replicas": float(snapshot.capacity.pending),
        "draining_replicas": float(snapshot.draining),
        "replica_capacity_rps": decision.explanation.signals["replica_capacity_rps"],
        "gpus_per_replica": model.resources.get("GPU", 0.0),
    }
    if snapshot.cold_start_s is not None:
        values["cold_start_seconds"] = snapshot.cold_start_s
    return values
