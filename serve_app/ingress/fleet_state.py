"""The state of the fleet, for the page."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from serve_app.api.autoscaling import AutoscalingView
from serve_app.api.health import ModelReadiness, Observer
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.ingress.cold_start_progress import StoredState, expected_s, remaining_s, starting_replicas
from serve_app.settings.ledger import LedgerSettings
from serve_app.settings.tree import AppSettings, ModelSettings
from serve_app.telemetry.fleet_samples import FleetSamples

_SAMPLE_S, _UNWATCHED_SAMPLE_S = 5.0, 15.0
_FIRST_SAMPLES, _FIRST_CHANGES = 60, 30
"""A new listener gets at most so many. All samples and records of a day would be half a megabyte."""
_LEFT_OUT = ("signals", "ages_s")
"""The parts of a record that are not in its words, and half of its size."""
_LATE_S = 15.0
"""The policy writes its status every ten seconds."""
_COUNTS = ("ready", "starting", "pending", "draining", "target", "wanted")


class FleetState:
    """An ingress replica's `FleetView`.

    Args:
        settings: The settings of the application.
        observer: Answers `/ready` and `/metrics`.
        policy: Answers `/autoscaling/…`.
        stored: The documents that the engine replicas and the policy have stored.
        clock: The clock of `stored`.
    """

    def __init__(
        self,
        settings: AppSettings,
        observer: Observer,
        policy: AutoscalingView,
        stored: BoundedCall[StoredState],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = settings.models
        prices = {model.name: hour_price(model, settings.ledger) for model in settings.models}
        self._costs = {"currency": settings.ledger.currency, "prices": prices}
        self._observer, self._policy, self._stored = observer, policy, stored
        self._clock = clock
        self._samples = FleetSamples()
        self._sampled_at = -_UNWATCHED_SAMPLE_S
        self._parts: dict[str, Any] = {}
        self._records: list[dict[str, Any]] = []
        self._seq = -1

    async def parts(self, watched: bool) -> dict[str, Any]:
        asked_at = self._clock()
        is_due = asked_at - self._sampled_at >= (_SAMPLE_S if watched else _UNWATCHED_SAMPLE_S)
        if not (watched or is_due):
            return self._parts
        readiness = await self._observer.readiness()
        state = self._stored.last.value if self._stored.last is not None else StoredState()
        now = self._clock()
        pairs = zip(self._models, readiness.models, strict=True)
        models = {model.name: _model(model, ready, state, now) for model, ready in pairs}
        self._parts = {"models": models, "knobs": self._policy.knobs(), "policy": _policy(state, now)}
        if watched:
            self._parts["decisions"] = await self._new_records(state)
        if is_due:
            self._sampled_at = asked_at
            counts = {name: {each: model[each] for each in _COUNTS} for name, model in models.items()}
            exposition = (await self._observer.metrics()).decode()
            self._parts["samples"] = [self._samples.add(exposition, time.time(), counts)]
        return self._parts

    def everything(self) -> dict[str, Any]:
        samples = list(self._samples.kept)
        every = -(-len(samples) // _FIRST_SAMPLES) or 1
        changes = [record for record in self._records if record["kind"] != "heartbeat"][-_FIRST_CHANGES:]
        newest = {record["model"]: record for record in self._records}
        decisions = {record["seq"]: record for record in (*changes, *newest.values())}
        records = [decisions[seq] for seq in sorted(decisions)]
        return {**self._parts, "samples": samples[::-every][::-1], "decisions": records, **self._costs}

    async def _new_records(self, state: StoredState) -> list[dict[str, Any]]:
        """Return the records since the last call. 500 records take 8 ms to read, so only new ones are."""
        seq = -1 if state.status is None else int(state.status.get("decisions_seq", 0))
        if seq == self._seq:
            return []
        before = self._records[-1]["at"] if self._records else 0.0
        records = await self._policy.decisions()
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
        "starts": [_start(replica, found, scaling, now) for replica, found in starting.items()],
    }


def _policy(state: StoredState, now: float) -> dict[str, Any]:
    """Return whether the policy reports, how long it has been silent, and how many errors it has raised."""
    status = state.status or {"at": now}
    age_s = round(now - float(status["at"]))
    silent_s, errors = age_s if age_s >= _LATE_S else None, status.get("policy_errors", 0)
    return {"reports": state.status is not None, "silent_s": silent_s, "errors": errors}


def hour_price(model: ModelSettings, ledger: LedgerSettings) -> float | None:
    """Return the price of one replica for an hour; None without a price."""
    return model.tensor_parallel_size * ledger.gpu_hour_price(model.device, model.accelerator_type) or None


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
