"""An ingress replica's side of autoscaling: the knobs it passes on, and the decisions it can show."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.placement import replica_resources
from serve_app.ingress.knob_publisher import KnobPublisher
from serve_app.settings.live_knobs import LiveKnobs
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import ModelSettings
from serve_app.wire.documents import DECISIONS, KNOBS, STATUS, parse_records, parse_status, read_document
from serve_app.wire.served_models import ServedApplication, ServedModel, read_served

logger = logging.getLogger("ray.serve")

T = TypeVar("T")

_FRESH_S = 0.5
_WAIT_S = 0.4
"""For each of two documents: `/autoscaling/decisions` answers within a second."""
_PUBLISH_WAIT_S = 1.0
_ADOPT_WAIT_S = 5.0
"""A replica that starts has nothing else to go by."""


class AutoscalingDesk:
    """Takes knobs in, hands them to the policy, and reads what the policy wrote.

    Args:
        app: The Serve application.
        models: Its models' settings.
        live: The knobs, which this object alone changes.
        ingress_resources: What one ingress replica takes of the cluster, by Ray's resource names.
    """

    def __init__(
        self,
        app: str,
        models: Mapping[str, ModelSettings],
        live: LiveKnobs,
        ingress_resources: Mapping[str, float] | None = None,
    ) -> None:
        self._app = app
        self._models = models
        self._live = live
        self._ingress_resources = dict(ingress_resources or {})
        self._rejected = ""
        self._applied = False
        self._publisher = KnobPublisher(app)
        self._last = self._document(KNOBS, read_served, 0.0)
        self._status = self._document(STATUS, parse_status, _FRESH_S)
        self._decisions = self._document(DECISIONS, parse_records, _FRESH_S)

    def _document(self, kind: str, parse: Callable[[Any], T], fresh_s: float) -> BoundedCall[T | None]:
        return BoundedCall(
            f"{kind} of {self._app}", lambda: read_document(kind, self._app, parse), fresh_s, time.monotonic
        )

    async def apply(self, user_config: Mapping[str, Any] | None) -> None:
        """Take over the knobs in `user_config` and publish them.

        Invalid knobs leave those in force as they are; they are logged and shown by `/autoscaling/knobs`.
        Where the GCS does not answer within a second, the policy is told later.

        Raises:
            SettingsError: for invalid knobs where none have ever been in force.
        """
        try:
            self._live.apply(user_config)
            self._rejected = ""
        except SettingsError as error:
            if not self._applied and not await self._adopt_last():
                raise
            self._rejected = "; ".join(error.problems)
            logger.error("knobs rejected, those before stay in force: %s", self._rejected)
        self._applied = True
        await self._publisher.publish(self._served().document(time.time()), _PUBLISH_WAIT_S)

    async def _adopt_last(self) -> bool:
        """A replica that starts while invalid knobs are deployed goes on with those its peers use."""
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
                    name, settings.deployment_name, self._live.of(name), replica_resources(settings)
                )
                for name, settings in self._models.items()
            },
            self._live.ingress,
            self._rejected,
            self._ingress_resources,
        )

    def knobs(self) -> dict[str, Any]:
        """The knobs in force in this process, and what was rejected of those set."""
        return {**self._live.document(), "rejected": self._rejected}

    async def status(self) -> dict[str, Any] | None:
        """Where every model stands, as the policy said last; half a second old while the GCS answers."""
        answer = await self._status.get(_WAIT_S)
        return answer.value if answer is not None else None

    async def decisions(self) -> list[dict[str, Any]]:
        """The decision records kept, oldest first; as old as the status."""
        answer = await self._decisions.get(_WAIT_S)
        return list(answer.value or ()) if answer is not None else []

    def age_s(self) -> float | None:
        """Seconds since what `status` and `decisions` tell was read; None while nothing has been."""
        ages = [age for age in (self._status.age_s(), self._decisions.age_s()) if age is not None]
        return max(ages, default=None)
