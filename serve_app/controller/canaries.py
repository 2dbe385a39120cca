"""The versions of models in Ray Serve's controller: replicas for their shares, comparisons and fall backs."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from serve_app.controller.document_exchange import Inbox
from serve_app.policy.canary import LOOK_S, Comparison
from serve_app.wire.served_models import ServedApplication, ServedModel
from serve_app.wire.version_documents import Counts
from serve_app.wire.versions import Share, grown, in_force


class Canaries:
    """Compares the versions of each model, and remembers the counts that it has read."""

    def __init__(self) -> None:
        self._comparisons: dict[str, Comparison] = {}
        """By deployment, as all these."""
        self._shares: dict[str, Share] = {}
        """As at the last look."""
        self._fell_from: dict[str, Share] = {}
        """The shares before fall backs that are not stored yet."""
        self._read: dict[str, Mapping[str, Counts]] = {}
        """The counts at the last look by ingress replica."""
        self._loads: dict[str, tuple[Mapping[str, float], int]] = {}

    def forget_except(self, deployments: Collection[str]) -> None:
        for by_deployment in vars(self).values():
            for name in [name for name in by_deployment if name not in deployments]:
                del by_deployment[name]

    def note_load(self, deployment: str, signals: Mapping[str, float], ready: int) -> None:
        self._loads[deployment] = signals, ready

    def with_bounds(self, model: ServedModel, served: ServedApplication, inbox: Inbox) -> ServedModel:
        """Return the model with the least replicas that its share needs.

        A version gets the replicas for its share of all requests before they come. Once it has all of them,
        the old version needs none.
        """
        if model.version_of:
            least = self._needed(model, _share(model, inbox))
        else:
            versions = [each for each in served.models.values() if each.version_of == model.deployment]
            ready = [each for each in versions if self._loads.get(each.deployment, ({}, 0))[1]]
            if not any(_share(each, inbox).share >= 1.0 for each in ready):
                return model
            least = 0
        knobs = model.knobs.model_copy(update={"min_replicas": min(least, model.knobs.max_replicas)})
        return replace(model, knobs=knobs)

    def _needed(self, model: ServedModel, share: Share) -> int:
        if not share.share and not share.shadow:
            return 0
        own, old = (self._loads.get(name, ({}, 0))[0] for name in (model.deployment, model.version_of))
        rps = own.get("arrivals_30s_rps", 0.0) + old.get("arrivals_30s_rps", 0.0)
        capacity = own.get("replica_capacity_rps") or old.get("replica_capacity_rps") or 1.0
        return max(1, model.knobs.min_replicas, ceil(share.share * rps / capacity))

    def look(
        self, served: ServedApplication, inbox: Inbox, now: float, wall: float
    ) -> Iterator[tuple[ServedModel, Share | None, str]]:
        """Yield events of versions: the version, the share to store after a fall back, and what happened."""
        for model in (each for each in served.models.values() if each.version_of):
            share, name = _share(model, inbox), model.deployment
            if share == self._fell_from.get(name):
                continue  # the fall back is not stored yet
            self._fell_from.pop(name, None)
            before = self._shares.get(name, share)
            self._shares[name] = share
            if (share.share, share.shadow) != (before.share, before.shadow):
                copies = f", copies {share.shadow:g}" if share.shadow or before.shadow else ""
                yield model, None, f"version: share {before.share:g} -> {share.share:g}{copies}: {share.why}"
            if share.start != before.start or not (0.0 < share.share < 1.0 or share.shadow > 0.0):
                self._comparisons.pop(name, None)
                self._read.pop(name, None)
                continue
            if (known := self._comparisons.get(name)) is None:
                self._comparisons[name], self._read[name] = Comparison(now, now), inbox.counts
                continue
            if 0.0 <= now - known.looked_at < LOOK_S:
                continue
            seen = self._read[name]
            self._read[name] = {**seen, **inbox.counts}
            old, rules = served.models[model.version_of].name, model.knobs.canary
            found = known.look(_grown(seen, inbox, model.name), _grown(seen, inbox, old), rules, now)
            self._comparisons[name] = found
            if why := found.verdict(rules):
                del self._comparisons[name], self._read[name]
                self._fell_from[name] = share
                self._shares[name] = fallen = Share(0.0, 0.0, share.start, f"fell back. {why}", wall)
                yield model, fallen, f"version: share {share.share:g} -> 0, {fallen.why}"

    def document(self, model: ServedModel, inbox: Inbox) -> dict[str, Any]:
        """Return the share in force, and both versions side by side while they are compared."""
        share, found = _share(model, inbox), self._comparisons.get(model.deployment)
        return {
            **{name: getattr(share, name) for name in ("share", "shadow", "why", "at")},
            **({} if found is None else found.document()),
        }


def _share(model: ServedModel, inbox: Inbox) -> Share:
    return in_force(model.start_share, inbox.shares.get(model.name))


def _grown(seen: Mapping[str, Counts], inbox: Inbox, name: str) -> Counter[str]:
    """Return what the counts of a version have grown by, at all ingress replicas together."""
    found = Counter[str]()
    for replica, counts in inbox.counts.items():
        before = seen[replica].by_model if replica in seen else {}
        found += grown(before.get(name, {}), counts.by_model.get(name, {}))
    return found
