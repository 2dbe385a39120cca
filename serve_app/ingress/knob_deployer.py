"""Changes of knobs that a client of the HTTP API asks for."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from serve_app.api.autoscaling import ChangedKnobs
from serve_app.api.errors import ApiError
from serve_app.cluster.knob_changes import KnobRedeployment, RedeploymentError, deploy, knob_redeployment
from serve_app.settings.knobs import LiveKnobs
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import INGRESS_SCOPE

logger = logging.getLogger("ray.serve")

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
