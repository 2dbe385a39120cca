import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from serve_app.api.errors import ApiError
from serve_app.ingress.knob_setter import set_knobs
from serve_app.settings.knobs import Knobs, LiveKnobs
from serve_app.settings.settings_error import SettingsError
from tests.cli.rest import application, details


class FakeController:
    """Ray Serve's controller with one application, which keeps what it is told to apply.

    Its replica gets new knobs a moment after the answer.
    """

    def __init__(self, *more: dict[str, Any]) -> None:
        self.live = LiveKnobs({"tide": Knobs()})
        self.details = details(application("shop", "tide"), *more)
        self.applied: list[Any] = []
        self.get_serve_instance_details = SimpleNamespace(remote=self._details)
        self.apply_config = SimpleNamespace(remote=self._apply)

    async def _details(self) -> dict[str, Any]:
        return self.details

    async def _apply(self, config: Any) -> None:
        self.applied.append(config)
        (ingress,) = [each for each in config.applications[0].deployments if each.name == "Ingress"]
        asyncio.get_running_loop().call_later(0.02, self.live.apply, ingress.user_config)


async def change(controller: FakeController, scope: str, knobs: dict[str, Any], sender: str) -> list[str]:
    return await set_knobs("shop", controller, controller.live, scope, knobs, sender)


async def test_a_change_is_deployed_and_logged_with_its_sender(caplog: pytest.LogCaptureFixture) -> None:
    controller = FakeController()
    with caplog.at_level(logging.INFO, "ray.serve"):
        changes = await change(controller, "tide", {"max_replicas": 4}, "API key 'boss'")

    assert changes == ["tide.max_replicas: 1 -> 4"]
    assert controller.live.of("tide").max_replicas == 4
    (config,) = controller.applied
    (ingress,) = [each for each in config.applications[0].deployments if each.name == "Ingress"]
    assert ingress.user_config["autoscaling"]["tide"]["max_replicas"] == 4
    assert "knobs set by API key 'boss': tide.max_replicas: 1 -> 4" in caplog.text


@pytest.mark.parametrize(
    ("scope", "knobs", "told"),
    [
        ("tide", {"max_replicas": 0}, "max_replicas = 0: input should be greater than or equal to 1"),
        ("tide", {"max_replica": 4}, "did you mean 'max_replicas'"),
        ("none", {"max_replicas": 4}, "model = 'none': does not exist"),
        ("ingress", {"max_replicas": 2000}, "less than or equal to 1000"),
    ],
)
async def test_a_bad_change_is_not_deployed(scope: str, knobs: dict[str, Any], told: str) -> None:
    controller = FakeController()
    with pytest.raises(SettingsError, match=told):
        await change(controller, scope, knobs, "somebody")

    assert controller.applied == []


async def test_a_change_repairs_rejected_knobs() -> None:
    controller = FakeController()
    rejected = {"autoscaling": {"tide": {"max_replicas": 0}}}
    controller.details = details(application("shop", "tide", user_config=rejected))

    assert await change(controller, "tide", {"max_replicas": 4}, "boss") == ["tide.max_replicas: 1 -> 4"]
    assert controller.live.of("tide").max_replicas == 4


async def test_no_change_is_made_that_would_delete_an_application() -> None:
    controller = FakeController(
        {"name": "other", "source": "declarative", "status": "DEPLOYING", "deployments": {}}
    )
    with pytest.raises(ApiError, match="would delete") as caught:
        await change(controller, "tide", {"max_replicas": 4}, "somebody")

    assert (caught.value.status, controller.applied) == (503, [])
