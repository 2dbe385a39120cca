"""An ingress replica's part in autoscaling: it publishes the knobs, and shows the policy's decisions."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.placement import replica_resources
from serve_app.settings.identity import engine_identity
from serve_app.settings.live_knobs import LiveKnobs
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.telemetry import TraceSettings
from serve_app.settings.tree import ModelSettings
from serve_app.wire.documents import (
    DECISIONS,
    KNOBS,
    STATUS,
    parse_records,
    parse_status,
    put_document,
    read_document,
)
from serve_app.wire.own_clock import OwnClock
from serve_app.wire.served_models import ServedApplication, ServedModel, read_served

logger = logging.getLogger("ray.serve")

T = TypeVar("T")

_FRESH_S = 0.5
_WAIT_S = 0.4
"""For each of two documents, so that `/autoscaling/decisions` answers within a second."""
_PUBLISH_WAIT_S = 1.0
_RETRY_S = 1.0
_ADOPT_WAIT_S = 5.0
"""For the knobs of other replicas: a replica that starts with invalid knobs has no others."""


class KnobPublisher:
    """Takes knobs from Ray, publishes them for the policy, and reads the policy's documents.

    Args:
        app: The Serve application.
        models: Its models' settings, by name.
        live: The knobs in force. Only this object changes them.
        ingress_resources: The resources of one ingress replica, by Ray's names.
        zygote: Whether nodes keep zygotes.
        traces: Where the policy sends the spans of its decisions.
    """

    def __init__(
        self,
        app: str,
        models: Mapping[str, ModelSettings],
        live: LiveKnobs,
        ingress_resources: Mapping[str, float] | None = None,
        zygote: bool = True,
        traces: TraceSettings | None = None,
    ) -> None:
        self._traces = traces if traces is not None and traces.enabled else None
        self._app = app
        self._models = models
        self._live = live
        self._ingress_resources = dict(ingress_resources or {})
        self._zygote = zygote
        self._rejected = ""
        self._applied = False
        self._publisher = _Publisher(app)
        self._last = self._document(KNOBS, read_served, 0.0)
        self._own_clock = OwnClock()
        self._status = self._document(STATUS, parse_status, _FRESH_S)
        self._decisions = self._document(DECISIONS, parse_records, _FRESH_S)

    def _document(self, kind: str, parse: Callable[[Any], T], fresh_s: float) -> BoundedCall[T | None]:
        return BoundedCall(
            f"{kind} of {self._app}", lambda: read_document(kind, self._app, parse), fresh_s, time.monotonic
        )

    async def apply(self, user_config: Mapping[str, Any] | None) -> None:
        """Apply the knobs in `user_config`, and publish them.

        If they are invalid, the previous knobs stay in force, and `/autoscaling/knobs` shows the problems. If
        the GCS does not answer within a second, the policy gets the knobs later.

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
        await self._publisher.publish(self._served().document(time.time()), _PUBLISH_WAIT_S)

    async def _adopt_last(self) -> bool:
        """Apply the knobs of the other replicas, because the deployed knobs are invalid."""
        answer = await self._last.get(_ADOPT_WAIT_S)
        served = answer.value if answer is not None else None
        if served is None:
            return False
        knobs = {model.name: model.knobs for model in served.models.values()}
        if set(knobs) != set(self._models):
            return False
        self._live.adopt(knobs, served.ingress)
        return True

    def _served(self) -> ServedApplication:
        return ServedApplication(
            {
                settings.deployment_name: ServedModel(
                    name,
                    settings.deployment_name,
                    self._live.of(name),
                    replica_resources(settings),
                    engine_identity(settings),
                )
                for name, settings in self._models.items()
            },
            self._live.ingress,
            self._rejected,
            self._ingress_resources,
            self._zygote,
            self._traces,
        )

    def knobs(self) -> dict[str, Any]:
        return {**self._live.document(), "rejected": self._rejected}

    async def status(self) -> dict[str, Any] | None:
        answer = await self._status.get(_WAIT_S)
        if answer is None or answer.value is None:
            return None
        now, at = time.monotonic(), float(answer.value["at"])
        since = self._own_clock.times(STATUS, {STATUS: at}, now, time.time())[STATUS]
        return {**answer.value, "age_s": round(now - since, 3)}

    async def decisions(self) -> list[dict[str, Any]]:
        answer = await self._decisions.get(_WAIT_S)
        return list(answer.value or ()) if answer is not None else []

    def age_s(self) -> float | None:
        ages = [age for age in (self._status.age_s(), self._decisions.age_s()) if age is not None]
        return max(ages, default=None)


class _Publisher:
    """Writes the newest knobs of one application in threads, and retries until it succeeds.

    Ray passes knobs in the event loop, which must not wait for Ray's store.
    """

    def __init__(self, app: str) -> None:
        self._app = app
        self._newest: Mapping[str, Any] = {}
        self._writing = threading.Lock()

    async def publish(self, document: Mapping[str, Any], wait_s: float) -> None:
        """Start to write `document`, and wait at most `wait_s` seconds for the end."""
        self._newest = document
        written: Future[None] = Future()
        threading.Thread(
            target=self._write, args=(document, written), name=f"knobs of {self._app}", daemon=True
        ).start()
        await asyncio.wait((asyncio.wrap_future(written),), timeout=wait_s)

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
                    failed.wait(_RETRY_S)
        written.set_result(None)
