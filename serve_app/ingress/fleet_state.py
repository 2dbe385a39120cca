"""The state of the fleet for the page, and changes of knobs from it."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ray.serve.schema import ServeDeploySchema

from serve_app.api.autoscaling import AutoscalingView
from serve_app.api.errors import ApiError
from serve_app.api.health import ModelReadiness, Observer
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.redeployment import RedeploymentError, deployed_config, given_user_config, redeployment
from serve_app.ingress.cold_start_progress import NOT_STARTING, StoredState, expected_s, remaining_s
from serve_app.settings.knob_changes import INGRESS_SCOPE, changed, differences
from serve_app.settings.knobs import IngressKnobs, Knobs, LiveKnobs, read_user_config
from serve_app.settings.ledger import LedgerSettings
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import AppSettings, ModelSettings
from serve_app.telemetry.fleet_samples import FleetSamples

logger = logging.getLogger("ray.serve")

_SAMPLE_S = 5.0
_UNWATCHED_SAMPLE_S = 15.0
_RECORDS = 200
"""The newest decision records that a new listener gets, of all models together."""
_LATE_S = 15.0
"""The policy writes its status every ten seconds."""
_IN_FORCE_S, _LOOK_S = 5.0, 0.05
_COUNTS = ("ready", "starting", "pending", "draining", "target", "wanted")


class FleetState:
    """An ingress replica's `FleetView`.

    Args:
        settings: The settings of the application.
        observer: Answers `/ready` and `/metrics`.
        policy: Answers `/autoscaling/…`.
        stored: The documents that the engine replicas and the policy have stored.
        clock: The clock of `stored`.
        wall: Unix time in seconds.
    """

    def __init__(
        self,
        settings: AppSettings,
        observer: Observer,
        policy: AutoscalingView,
        stored: BoundedCall[StoredState],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._models = settings.models
        self._prices = {model.name: hour_price(model, settings.ledger) for model in settings.models}
        self._currency = settings.ledger.currency
        self._observer, self._policy, self._stored = observer, policy, stored
        self._clock, self._wall = clock, wall
        self._samples = FleetSamples()
        self._next_sample = 0.0
        self._parts: dict[str, Any] = {}
        self._records: list[dict[str, Any]] = []
        self._seq = -1

    async def parts(self, watched: bool) -> dict[str, Any]:
        now = self._clock()
        sampled = now >= self._next_sample - (_UNWATCHED_SAMPLE_S - _SAMPLE_S if watched else 0.0)
        if not (watched or sampled):
            return self._parts
        readiness = await self._observer.readiness()
        state = self._stored.last.value if self._stored.last is not None else StoredState()
        models = {
            model.name: self._model(model, ready, state, self._clock())
            for model, ready in zip(self._models, readiness.models, strict=True)
        }
        self._parts = {"models": models, "knobs": self._policy.knobs(), "policy": self._policy_trouble(state)}
        if watched:
            self._parts["decisions"] = await self._new_records(state)
        if sampled:
            self._next_sample = now + _UNWATCHED_SAMPLE_S
            counts = {name: {each: model[each] for each in _COUNTS} for name, model in models.items()}
            exposition = (await self._observer.metrics()).decode()
            self._parts["samples"] = [self._samples.add(exposition, self._wall(), counts)]
        return self._parts

    def everything(self) -> dict[str, Any]:
        more = {"samples": list(self._samples.kept), "decisions": self._records[-_RECORDS:]}
        return {**self._parts, **more, "currency": self._currency, "prices": self._prices}

    def _model(
        self, model: ModelSettings, ready: ModelReadiness, state: StoredState, now: float
    ) -> dict[str, Any]:
        name = model.deployment_name
        scaling = state.of(name, now) or {}
        newest = sorted(state.phases.get(name, {}).items(), key=lambda item: -float(item[1]["since"]))
        starting = [(replica, found) for replica, found in newest if found["phase"] not in NOT_STARTING]
        # Documents of killed replicas linger.
        awaited = int(scaling.get("starting", 0)) + int(scaling.get("pending", 0))
        return {
            **{count: int(scaling.get(count, 0)) for count in _COUNTS},
            "ready": ready.replicas,
            "state": ready.state,
            "phase": ready.phase,
            "reason": scaling.get("reason") or ready.reason,
            "lost": ready.replicas_out,
            "mode": scaling.get("mode"),
            "cold_start_s": scaling.get("cold_start_s"),
            "starts": [_start(replica, found, scaling, now) for replica, found in starting[:awaited]],
        }

    def _policy_trouble(self, state: StoredState) -> dict[str, Any]:
        status = state.status
        age_s = None if status is None else self._clock() - float(status["at"])
        silent_s = None if age_s is None or age_s < _LATE_S else round(age_s)
        errors = 0 if status is None else status.get("policy_errors", 0)
        return {"reports": status is not None, "silent_s": silent_s, "errors": errors}

    async def _new_records(self, state: StoredState) -> list[dict[str, Any]]:
        """Return the records since the last call. 500 records take 8 ms to read, so only new ones are."""
        seq = -1 if state.status is None else int(state.status.get("decisions_seq", 0))
        if seq == self._seq:
            return []
        before = self._records[-1]["at"] if self._records else 0.0
        self._records, self._seq = await self._policy.decisions(), seq
        return [record for record in self._records if record["at"] > before]


def hour_price(model: ModelSettings, ledger: LedgerSettings) -> float | None:
    """Return the price of one replica for an hour; None without a price."""
    return model.tensor_parallel_size * ledger.gpu_hour_price(model.device, model.accelerator_type) or None


def _start(replica: str, found: Mapping[str, Any], scaling: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return how far a replica's start is, in seconds."""
    expected = expected_s(found, scaling)
    left_s = remaining_s(found, expected, now)
    return {
        "replica": replica,
        "phase": found["phase"],
        "phase_s": round(now - float(found["since"]), 1),
        "durations_s": found["durations_s"],
        "expected_s": expected,
        "eta_s": None if left_s is None else round(left_s, 1),
    }


class KnobSetter:
    """Does what `tideserve knobs set` does, through Ray Serve's controller.

    Args:
        app: The Serve application.
        controller: Ray Serve's controller.
        models: The models of the application.
        defaults: The default knobs of each model, by name.
        live: The knobs in force in this replica.
    """

    def __init__(
        self,
        app: str,
        controller: Any,
        models: Sequence[ModelSettings],
        defaults: Mapping[str, Knobs],
        live: LiveKnobs,
    ) -> None:
        self._app, self._controller, self._defaults, self._live = app, controller, defaults, live
        self._lora = {model.name: model.lora for model in models}

    async def __call__(self, scope: str, knobs: Mapping[str, Any], sender: str) -> list[str]:
        """Change knobs, and return the changed values, in words.

        It waits until they are in force in this replica, so that the next question finds them; at most 5 s.

        Raises:
            SettingsError: the knobs are not valid.
            ApiError: 503 if Ray does not report the application's configuration.
        """
        if scope not in (*self._defaults, INGRESS_SCOPE):
            raise SettingsError([f"model = {scope[:200]!r}: does not exist"])
        details = await self._controller.get_serve_instance_details.remote()
        config = deployed_config(details["applications"].get(self._app, {}))
        old = given_user_config(config.get("deployments") or [])[1]
        new = changed(old, scope, knobs)
        before, after = (read_user_config(self._defaults, each, self._lora) for each in (old, new))
        lines = differences(before, after)
        try:
            document = redeployment(details, self._app, new)
        except RedeploymentError as error:
            raise ApiError(503, f"{error}.", code="knobs_unavailable", headers={"Retry-After": "5"}) from None
        if new != old:
            await self._controller.apply_config.remote(ServeDeploySchema.model_validate(document))
            logger.info("knobs set by %s: %s", sender, "; ".join(lines) or "no value in force changes")
            with suppress(TimeoutError):  # Ray may be slow, or a later change may have replaced this one
                async with asyncio.timeout(_IN_FORCE_S):
                    while self._in_force() != after:  # noqa: ASYNC110 Ray signals nobody but the publisher
                        await asyncio.sleep(_LOOK_S)
        return lines

    def _in_force(self) -> tuple[dict[str, Knobs], IngressKnobs]:
        return {name: self._live.of(name) for name in self._defaults}, self._live.ingress
