"""An ingress replica's side of autoscaling: the knobs it passes on, and the decisions it can show."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from serve_app.autoscaling.live import LiveKnobs
from serve_app.autoscaling.served import Served, ServedModel, read_served
from serve_app.documents import DECISIONS, KNOBS, STATUS, get_document, put_document
from serve_app.placement import replica_resources
from serve_app.settings.errors import SettingsError
from serve_app.settings.tree import ModelSettings

logger = logging.getLogger("ray.serve")

_AGE_S = 0.5


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
        self._read: dict[str, tuple[float, Any]] = {}

    def apply(self, user_config: Mapping[str, Any] | None) -> None:
        """Take over the knobs in `user_config` and publish them.

        Invalid knobs leave those in force as they are; they are logged and shown by `/autoscaling/knobs`.

        Raises:
            SettingsError: for invalid knobs where none have ever been in force.
        """
        try:
            self._live.apply(user_config)
            self._rejected = ""
        except SettingsError as error:
            if not self._applied and not self._adopt_last():
                raise
            self._rejected = "; ".join(error.problems)
            logger.error("knobs rejected, those before stay in force: %s", self._rejected)
        self._applied = True
        put_document(KNOBS, self._app, self._served().document(time.time()))

    def _adopt_last(self) -> bool:
        """A replica that starts while invalid knobs are deployed goes on with those its peers use."""
        document = get_document(KNOBS, self._app)
        if document is None:
            return False
        served = read_served(document)
        knobs = {model.name: model.knobs for model in served.models.values()}
        if set(knobs) != set(self._models):
            return False
        self._live.adopt(knobs, served.ingress)
        return True

    def _served(self) -> Served:
        return Served(
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
        """Where every model stands, as the policy said last, at most half a second ago."""
        found: dict[str, Any] | None = await self._get(STATUS)
        return found

    async def decisions(self) -> list[dict[str, Any]]:
        """The decision records kept, oldest first."""
        found: list[dict[str, Any]] | None = await self._get(DECISIONS)
        return found or []

    async def _get(self, kind: str) -> Any:
        at, document = self._read.get(kind, (float("-inf"), None))
        if time.monotonic() - at > _AGE_S:
            document = await asyncio.to_thread(get_document, kind, self._app)
            self._read[kind] = (time.monotonic(), document)
        return document
