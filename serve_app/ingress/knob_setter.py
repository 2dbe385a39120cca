"""Changes of knobs that a client of the HTTP API asks for."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ray.serve.schema import ServeDeploySchema

from serve_app.api.errors import ApiError
from serve_app.cluster.redeployment import RedeploymentError, knob_redeployment
from serve_app.settings.knob_changes import INGRESS_SCOPE
from serve_app.settings.knobs import LiveKnobs
from serve_app.settings.settings_error import SettingsError

logger = logging.getLogger("ray.serve")

_IN_FORCE_S, _LOOK_S = 5.0, 0.05


async def set_knobs(
    app: str, controller: Any, live: LiveKnobs, scope: str, knobs: Mapping[str, Any], sender: str
) -> list[str]:
    """Do what `tideserve knobs set` does, through Ray Serve's controller.

    It waits until they are in force in this replica, so that the next question finds them; at most 5 s.

    Args:
        app: The Serve application.
        controller: Ray Serve's controller.
        live: The knobs in force in this replica.
        scope: A model, or `ingress`.
        knobs: The new values.
        sender: Who asks, for the log.

    Returns:
        The changed values in force, in words.

    Raises:
        SettingsError: the knobs are not valid.
        ApiError: 503 if Ray does not report the application's configuration.
    """
    if scope not in (*live.in_force[0], INGRESS_SCOPE):
        raise SettingsError([f"model = {scope[:200]!r}: does not exist"])
    details = await controller.get_serve_instance_details.remote()
    try:
        change = knob_redeployment(details, app, scope, knobs, live)
    except RedeploymentError as error:
        raise ApiError(503, f"{error}.", code="knobs_unavailable", headers={"Retry-After": "5"}) from None
    if not change.is_deployed:
        await controller.apply_config.remote(ServeDeploySchema.model_validate(change.document))
        logger.info("knobs set by %s: %s", sender, "; ".join(change.changes) or "no value in force changes")
        with suppress(TimeoutError):  # Ray may be slow, or a later change may have replaced this one
            async with asyncio.timeout(_IN_FORCE_S):
                while live.in_force != change.knobs:  # noqa: ASYNC110 Ray signals nobody but the publisher
                    await asyncio.sleep(_LOOK_S)
    return change.changes
