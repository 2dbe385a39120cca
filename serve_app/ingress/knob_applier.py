"""The knobs of an ingress replica: it takes them from Ray, and publishes them for the policy."""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.placement import replica_resources
from serve_app.settings.identity import engine_identity
from serve_app.settings.knobs import Knobs, LiveKnobs
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import AppSettings, ModelSettings
from serve_app.wire.documents import KNOBS, put_document, read_document
from serve_app.wire.served_models import ServedApplication, ServedModel, ServedVariant, read_served

logger = logging.getLogger("ray.serve")

_ADOPT_WAIT_S = 5.0
"""For the knobs of other replicas: a replica that starts with invalid knobs has no others."""


class KnobApplier:
    """Takes knobs from Ray, and publishes them for the policy.

    The newest knobs are written in threads, and again until the write succeeds: Ray passes knobs in the event
    loop, which must not wait for Ray's store.

    Args:
        app: The Serve application.
        settings: The application's settings.
        live: The knobs in force. Only this object changes them.
        wait_s: How long `apply` waits for the write.
        retry_s: The time after a failed write until the next.
    """

    def __init__(
        self,
        app: str,
        settings: AppSettings,
        live: LiveKnobs,
        wait_s: float = 1.0,
        retry_s: float = 1.0,
    ) -> None:
        self._app = app
        self._settings = settings
        self._live = live
        self._wait_s = wait_s
        self._retry_s = retry_s
        self._rejected = ""
        self._applied = False
        self._last = BoundedCall(f"knobs of {app}", lambda: read_document(KNOBS, app, read_served), 0.0)
        self._newest: Mapping[str, Any] = {}
        self._writing = threading.Lock()

    def document(self) -> dict[str, Any]:
        """Return the knobs in force, and the problems of rejected knobs, as plain data."""
        return {**self._live.document(), "rejected": self._rejected}

    async def apply(self, user_config: Mapping[str, Any] | None) -> None:
        """Apply the knobs in `user_config`, and publish them.

        If they are invalid, the previous knobs stay in force, and `/autoscaling/knobs` shows the problems. If
        the GCS does not answer in time, the policy gets the knobs later.

        Raises:
            SettingsError: the knobs are invalid, and there are no previous ones.
        """
        try:
            self._live.apply(user_config)
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
            target=self._write, args=(document, written), name=f"knobs of {self._app}", daemon=True
        ).start()
        await asyncio.wait((asyncio.wrap_future(written),), timeout=self._wait_s)

    async def _adopt_last(self) -> bool:
        """Apply the knobs of the other replicas, because the deployed knobs are invalid."""
        answer = await self._last.get(_ADOPT_WAIT_S)
        served = answer.value if answer is not None else None
        if served is None:
            return False
        knobs = {model.name: model.knobs for model in served.models.values()}
        if set(knobs) != {model.name for model in self._settings.models}:
            return False
        self._live.adopt(knobs, served.ingress)
        return True

    def _served(self) -> ServedApplication:
        models = {
            model.deployment_name: _served_model(model, self._live.of(model.name))
            for model in self._settings.models
        }
        ingress, traces = self._settings.ingress, self._settings.telemetry.traces
        return ServedApplication(
            models,
            self._live.ingress,
            self._rejected,
            {"CPU": ingress.cpus_per_replica, **ingress.resources},
            self._settings.zygote,
            self._settings.model_preemption,
            traces if traces.enabled else None,
        )

    def _write(self, document: Mapping[str, Any], written: Future[None]) -> None:
        failed = threading.Event()
        logged = False
        # One write at a time: an older one that hangs must not end after a newer one.
        with self._writing:
            while document is self._newest:
                try:
                    put_document(KNOBS, self._app, document)
                    break
                except Exception:
                    if not logged:
                        logger.exception("the knobs of %s could not be published; trying again", self._app)
                    logged = True
                    failed.wait(self._retry_s)
        written.set_result(None)


def _served_model(model: ModelSettings, knobs: Knobs) -> ServedModel:
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
    )
