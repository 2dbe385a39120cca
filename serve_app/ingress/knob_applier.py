"""The knobs of an ingress replica: taken from Ray, published for the policy, and changed for clients."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayError

from serve_app.api.autoscaling import ChangedKnobs
from serve_app.api.errors import ApiError
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.knob_changes import KnobRedeployment, RedeploymentError, deploy, knob_redeployment
from serve_app.cluster.placement import replica_resources
from serve_app.settings.identity import engine_identity, speed_identity
from serve_app.settings.knobs import Knobs, LiveKnobs
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import INGRESS_SCOPE, AppSettings, ModelSettings
from serve_app.wire.documents import KNOBS, put_document, read_document
from serve_app.wire.served_models import ServedApplication, ServedModel, ServedVariant, read_served

logger = logging.getLogger("ray.serve")

_ADOPT_WAIT_S = 5.0
"""For the knobs of other replicas: a replica that starts with invalid knobs has no others."""


@dataclass(slots=True, eq=False)
class KnobApplier:
    """Takes knobs from Ray, and publishes them for the policy.

    The newest knobs are written in threads, and again until the write succeeds: Ray passes knobs in the event
    loop, which must not wait for Ray's store.
    """

    app: str
    settings: AppSettings
    live: LiveKnobs
    """The knobs in force. Only this object changes them."""
    wait_s: float = 1.0
    """How long `apply` waits for the write."""
    retry_s: float = 1.0
    """The time after a failed write until the next."""
    _rejected: str = field(default="", init=False)
    _applied: bool = field(default=False, init=False)
    _last: BoundedCall[ServedApplication | None] = field(init=False)
    _newest: Mapping[str, Any] = field(default_factory=dict, init=False)
    _writing: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._last = BoundedCall(
            f"knobs of {self.app}", lambda: read_document(KNOBS, self.app, read_served), 0.0
        )

    def document(self) -> dict[str, Any]:
        """Return the knobs in force, and the problems of rejected knobs, as plain data."""
        return {**self.live.document(), "rejected": self._rejected}

    async def apply(self, user_config: Mapping[str, Any] | None) -> None:
        """Apply the knobs in `user_config`, and publish them.

        If they are invalid, the previous knobs stay in force, and `/autoscaling/knobs` shows the problems. If
        the GCS does not answer in time, the policy gets the knobs later.

        Raises:
            SettingsError: the knobs are invalid, and there are no previous ones.
        """
        try:
            self.live.apply(user_config)
            self._rejected = ""
        except SettingsError as error:
            if not self._applied and not await self._adopt_last():
                raise
            self._rejected = "; ".join(error.problems)
            logger.error("knobs rejected, the previous knobs stay in force: %s", self._rejected)
        self._applied = True
        self._newest = document = self._served().document(time.time())
        written: Future[None] = Future()
        threading.Thread(
            target=self._write, args=(document, written), name=f"knobs of {self.app}", daemon=True
        ).start()
        await asyncio.wait((asyncio.wrap_future(written),), timeout=self.wait_s)

    async def _adopt_last(self) -> bool:
        """Apply the knobs of the other replicas, because the deployed knobs are invalid."""
        answer = await self._last.get(_ADOPT_WAIT_S)
        served = answer.value if answer is not None else None
        if served is None:
            return False
        knobs = {model.name: model.knobs for model in served.models.values()}
        if set(knobs) != {model.name for model in self.settings.models}:
            return False
        self.live.adopt(knobs, served.ingress)
        return True

    def _served(self) -> ServedApplication:
        by_name: Mapping[str | None, ModelSettings] = {each.name: each for each in self.settings.models}
        models = {
            model.deployment_name: _served_model(
                model, self.live.of(model.name), by_name.get(model.version_of)
            )
            for model in self.settings.models
        }
        ingress, traces = self.settings.ingress, self.settings.telemetry.traces
        return ServedApplication(
            models,
            self.live.ingress,
            self._rejected,
            {"CPU": ingress.cpus_per_replica, **ingress.resources},
            self.settings.zygote,
            self.settings.model_preemption,
            traces if traces.enabled else None,
        )

    def _write(self, document: Mapping[str, Any], written: Future[None]) -> None:
        failed = threading.Event()
        logged = False
        # One write at a time: an older one that hangs must not end after a newer one.
        with self._writing:
            while document is self._newest:
                try:
                    put_document(KNOBS, self.app, document)
                    break
                except Exception:
                    if not logged:
                        logger.exception("the knobs of %s could not be published; trying again", self.app)
                    logged = True
                    failed.wait(self.retry_s)
        written.set_result(None)


_LOOK_S = 0.05


@dataclass(slots=True)
class KnobDeployer:
    """Does what `tideserve knobs set` does, through Ray Serve's controller."""

    app: str
    """The Serve application."""
    controller: Any
    """Ray Serve's controller."""
    live: LiveKnobs
    """The knobs in force in this replica."""
    ray_s: float = 10.0
    """How long Ray may take. The controller may be stopped, and then never answers."""
    in_force_s: float = 5.0
    """How long to wait until the change is in force in this replica, so that the next question finds it."""

    async def set(self, scope: str, knobs: Mapping[str, Any], sender: str) -> ChangedKnobs:
        """Change the knobs of `scope`, a model or `ingress`, for `sender`, who is named in the log.

        Raises:
            SettingsError: the knobs are not valid.
            ApiError: 503 if Ray does not answer, or does not report the application's configuration.
        """
        if scope not in (*self.live.in_force[0], INGRESS_SCOPE):
            raise SettingsError([f"model = {scope[:200]!r}: does not exist"])
        try:
            async with asyncio.timeout(self.ray_s):
                change = await self._deploy(scope, knobs)
        except RedeploymentError as error:
            raise _unavailable(str(error)) from None
        except (RayError, TimeoutError) as error:
            logger.error("knobs could not be set by %s: %r", sender, error)
            raise _unavailable(f"Ray Serve's controller did not confirm: {type(error).__name__}") from None
        if not change.is_deployed:
            lines = "; ".join(change.changes) or "no value in force changes"
            logger.info("knobs set by %s: %s", sender, lines)
        with suppress(TimeoutError):  # Ray may be slow, or a later change may have replaced this one
            async with asyncio.timeout(self.in_force_s):
                while not self._has(change, scope, knobs):  # noqa: ASYNC110 Ray signals only the publisher
                    await asyncio.sleep(_LOOK_S)
        return ChangedKnobs(change.changes, self._has(change, scope, knobs))

    def _has(self, change: KnobRedeployment, scope: str, names: Iterable[str]) -> bool:
        """Whether the changed knobs are in force. Other knobs may have changed since."""
        pairs = (self.live.in_force, change.knobs)
        now, then = (ingress if scope == INGRESS_SCOPE else models[scope] for models, ingress in pairs)
        return all(getattr(now, name) == getattr(then, name) for name in names)

    async def _deploy(self, scope: str, knobs: Mapping[str, Any]) -> KnobRedeployment:
        """Deploy a change of the present configuration. A deploy in between leads to a new try."""
        while True:
            details = await self.controller.get_serve_instance_details.remote()
            change = knob_redeployment(details, self.app, scope, knobs, self.live)
            if change.is_deployed or await self.controller.__ray_call__.remote(deploy, change):
                return change


def _unavailable(problem: str) -> ApiError:
    return ApiError(503, f"{problem}.", code="knobs_unavailable", headers={"Retry-After": "5"})


def _served_model(model: ModelSettings, knobs: Knobs, base: ModelSettings | None) -> ServedModel:
    engines = model.engines()
    variants = [
        ServedVariant(
            each.name,
            engine.engine_name,
            replica_resources(engine),
            engine_identity(engine),
            each.usd_per_hour,
            each.preemptible,
            each.min_replicas,
            each.max_replicas,
            each.assumed_speed,
            speed_identity(engine),
        )
        for each, engine in zip(model.variants, engines, strict=False)
    ]
    first = engines[0]
    return ServedModel(
        model.name,
        model.deployment_name,
        knobs,
        replica_resources(first),
        engine_identity(first),
        tuple(variants),
        "" if base is None else base.deployment_name,
        model.share,
        model.shadow,
    )
