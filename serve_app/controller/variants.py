"""The variants of a model on Ray Serve: their contexts and documents, for one decision about the model."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from serve_app.controller.contexts import SnapshotBuilder, count_phases, running_ids
from serve_app.controller.document_exchange import Deployment, Inbox
from serve_app.policy.variant_decision import VariantNow
from serve_app.wire.data_plane import LEAVING_S
from serve_app.wire.phases import NODE_LOST, PROCESS_ENDED, Loss
from serve_app.wire.served_models import ServedModel

_TAKEN = (NODE_LOST, PROCESS_ENDED)
"""Causes of a loss that may be the end of a node. Its processes end before it is known to be lost."""


def variants_now(
    model: ServedModel,
    contexts: Mapping[str, Any],
    snapshots: SnapshotBuilder,
    ingress: Any | None,
    inbox: Inbox,
    losses: Collection[Loss],
    now: float,
) -> list[VariantNow]:
    """Return the variants of `model`. The `losses` are those since the last decision, `now` in Unix time."""
    variants = []
    for variant in model.variants:
        name, ctx = variant.deployment, contexts[variant.deployment]
        snapshot = snapshots.build(name, ctx, ingress, inbox, now, model.deployment)
        phases = inbox.deployments.get(name, Deployment()).phases
        loading, _ = count_phases(phases, running_ids(ctx), now)
        serves_s = {
            replica: max(0.0, found["notice_s"] - LEAVING_S)
            for replica, found in phases.items()
            if "notice_s" in found
        }
        lost = [loss.replica for loss in losses if loss.deployment == name and loss.cause in _TAKEN]
        leaving = serves_s.keys() & running_ids(ctx)  # Ray may still count them
        ending = sum(serves_s[replica] > 0 for replica in leaving)
        variants.append(
            VariantNow(
                variant,
                replace(snapshot, ready=max(0, snapshot.ready - len(leaving) + ending)),
                ending,
                max(0, ctx.current_num_replicas + loading - len(leaving)),
                (*serves_s, *lost),
                0.0 if lost else min(serves_s.values(), default=0.0),
            )
        )
    return variants


def unsettled_variants(variants: Collection[VariantNow]) -> set[str]:
    """Return the engine deployments with starting or stopping replicas."""
    return {
        each.served.deployment
        for each in variants
        if each.snapshot.ready != each.snapshot.target or each.snapshot.draining
    }
