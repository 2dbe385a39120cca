"""The state of the fleet, for the page."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from serve_app.api.autoscaling import AutoscalingView
from serve_app.api.health import ModelReadiness, Observer
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.ingress.cold_start_progress import StoredState, expected_s, remaining_s, starting_replicas
from serve_app.settings.tree import AppSettings, ModelSettings
from serve_app.telemetry.fleet_samples import FleetSamples

_SAMPLE_S, _UNWATCHED_SAMPLE_S = 5.0, 15.0
MOST_SHARE = 0.01
"""The share of a core that samples may take. Those of a thousand replicas come less often."""
_FIRST_SAMPLES, _FIRST_CHANGES = 1200, 30
"""A new listener gets at most so many. 60 samples of each of 20 models are 543 KB, and 53 KB packed."""
_LEFT_OUT = ("signals", "ages_s")
"""The parts of a record that are not in its words, and half of its size."""
_LATE_S = 15.0
"""The policy writes its status every ten seconds."""
_OF_VARIANTS = ("variants", "usd_per_hour", "dearest_usd_per_hour", "canary")
"""The parts of the policy's status that only a model with variants, or a version, has."""
_COUNTS = ("ready", "starting", "pending", "draining", "target", "wanted")


@dataclass(slots=True)
class FleetState:
    """An ingress replica's `FleetView`."""

    settings: AppSettings
    observer: Observer
    """Answers `/ready` and `/metrics`."""
    policy: AutoscalingView
    """Answers `/autoscaling/…`."""
    stored: BoundedCall[StoredState]
    """The documents that the engine replicas and the policy have stored."""
    clock: Callable[[], float] = time.monotonic
    """The clock of `stored`."""
    _samples: FleetSamples = field(init=False, default_factory=FleetSamples)
    _sampled_at: float = field(init=False, default=-_UNWATCHED_SAMPLE_S)
    _records: list[dict[str, Any]] = field(init=False, default_factory=list)
    _seq: int = field(init=False, default=-1)

    async def parts(self, watched: bool) -> dict[str, Any]:
        asked_at = self.clock()
        pause_s = max(_SAMPLE_S if watched else _UNWATCHED_SAMPLE_S, self._samples.cost_s / MOST_SHARE)
        is_due = asked_at - self._sampled_at >= pause_s
        if not (watched or is_due):
            return {}
        readiness = await self.observer.readiness()
        state = self.stored.last.value if self.stored.last is not None else StoredState()
        now = self.clock()
        pairs = zip(self.settings.models, readiness.models, strict=True)
        models = {model.name: _model(model, ready, state, now) for model, ready in pairs}
        parts: dict[str, Any] = {
            "models": models,
            "knobs": self.policy.knobs(),
            "policy": _policy(state, now),
        }
        if watched:
            parts["decisions"] = await self._new_records(state)
        if is_due:
            self._sampled_at = asked_at
            counts = {
                name: {**{each: model[each] for each in _COUNTS}, "lost": len(model["lost"])}
                for name, model in models.items()
            }
            exposition = (await self.observer.metrics()).decode()
            sample = await asyncio.to_thread(self._samples.add, exposition, time.time(), counts)
            parts["samples"] = [sample]
        return parts

    def history(self) -> dict[str, Any]:
        samples, ledger = list(self._samples.kept), self.settings.ledger
        every = -(-len(samples) * len(self.settings.models) // _FIRST_SAMPLES) or 1
        changes = [record for record in self._records if record["kind"] != "heartbeat"][-_FIRST_CHANGES:]
        newest = {record["model"]: record for record in self._records}
        decisions = {record["seq"]: record for record in (*changes, *newest.values())}
        prices = {}
        for model in self.settings.models:
            price = ledger.gpu_hour_price(model.device, model.accelerator_type)
            prices[model.name] = model.ranks * price or None
        return {
            "samples": samples[::-every][::-1],
            "decisions": [decisions[seq] for seq in sorted(decisions)],
            "currency": ledger.currency,
            "prices": prices,
        }

    async def _new_records(self, state: StoredState) -> list[dict[str, Any]]:
        """Return the records since the last call. 500 records take 8 ms to read, so only new ones are."""
        seq = -1 if state.status is None else int(state.status.get("decisions_seq", 0))
        if seq == self._seq:
            return []
        before = self._records[-1]["at"] if self._records else 0.0
        records = await self.policy.decisions()
        self._records = [{key: r[key] for key in r if key not in _LEFT_OUT} for r in records]
        self._seq = seq
        return [record for record in self._records if record["at"] > before]


def _model(model: ModelSettings, ready: ModelReadiness, state: StoredState, now: float) -> dict[str, Any]:
    name = model.deployment_name
    scaling = state.of(name, now) or {}
    starting = starting_replicas(scaling, state.phases.get(name, {}), now) if scaling else {}
    return {
        **{count: int(scaling.get(count, 0)) for count in _COUNTS},
        "ready": ready.replicas,
        "state": ready.state,
        "phase": ready.phase,
        "reason": scaling.get("reason") or ready.reason,
        "lost": ready.replicas_out,
        "mode": scaling.get("mode"),
        "cold_start_s": scaling.get("cold_start_s"),
        **{each: scaling[each] for each in _OF_VARIANTS if each in scaling},
        "starts": [_start(replica, found, scaling, now) for replica, found in starting.items()],
    }


def _policy(state: StoredState, now: float) -> dict[str, Any]:
    """Return whether the policy reports, how long it has been silent, and how many errors it has raised."""
    status = state.status or {"at": now}
    age_s = round(now - float(status["at"]))
    silent_s, errors = age_s if age_s >= _LATE_S else None, status.get("policy_errors", 0)
    return {"reports": state.status is not None, "silent_s": silent_s, "errors": errors}


def _start(replica: str, found: Mapping[str, Any], scaling: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return how far a replica's start is, in seconds."""
    expected = expected_s(found, scaling)
    return {
        "replica": replica,
        "phase": found["phase"],
        "phase_s": round(now - float(found["since"]), 1),
        "durations_s": found["durations_s"],
        "expected_s": expected,
        "eta_s": remaining_s(found, expected, now),
    }
