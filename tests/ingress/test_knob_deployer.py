import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from operator import itemgetter
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import RayActorError

from serve_app.api.autoscaling import ChangedKnobs
from serve_app.api.errors import ApiError
from serve_app.ingress.knob_applier import KnobDeployer
from serve_app.settings.knobs import Knobs, LiveKnobs
from serve_app.settings.settings_error import SettingsError
from tests.cli.rest import application, details

CHANGES: dict[str, Any] = {
    "max_replicas": 4, "headroom": 2, "ttft_target_s": 0.3, "forecast": False, "upscale_delay_s": 7,
    "mode": "advise",
}  # fmt: skip


class FakeController:
    """Ray Serve's controller with one application, which keeps what it is told to apply.

    Its replicas get new knobs a moment after the answer, unless they are not `delivered`.
    """

    delivered = True
    fails: Exception | None = None
    """The controller's answer to all."""

    def __init__(self, *more: dict[str, Any], replicas: int = 1) -> None:
        self.details = details(application("shop", "tide"), *more)
        self.applied: list[Any] = []
        self.replicas = [LiveKnobs({"tide": Knobs()}) for _ in range(replicas)]
        self.live = self.replicas[0]
        handle = SimpleNamespace(
            get_serve_instance_details=SimpleNamespace(remote=self._details),
            __ray_call__=SimpleNamespace(remote=self._call),
        )
        self.setters = [
            KnobDeployer("shop", handle, live, ray_s=30.0, in_force_s=30.0) for live in self.replicas
        ]
        self.setter = self.setters[0]
        self.pause: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0)
        """Between the controller's answer and its arrival."""

    async def _details(self) -> dict[str, Any]:
        if self.fails is not None:
            raise self.fails
        found = self.details
        await self.pause()
        return found

    async def _call(self, function: Callable[..., Any], *given: Any) -> Any:
        return function(self, *given)

    def get_serve_instance_details(self) -> dict[str, Any]:
        return self.details

    def apply_config(self, config: Any) -> None:
        self.applied.append(config)
        (ingress,) = [each for each in config.applications[0].deployments if each.name == "Ingress"]
        self.deploy(ingress.user_config)

    def deploy(self, user_config: dict[str, Any], args: dict[str, Any] | None = None) -> None:
        """Replace the whole configuration, as `serve deploy` does."""
        self.details = details(application("shop", "tide", user_config=user_config))
        if args is not None:
            self.details["applications"]["shop"]["deployed_app_config"]["args"] |= args
        for live in self.replicas if self.delivered else ():
            asyncio.get_running_loop().call_later(0.02, live.apply, user_config)

    async def change(self, scope: str, knobs: dict[str, Any], sender: str = "somebody") -> ChangedKnobs:
        return await self.setter.set(scope, knobs, sender)


async def test_a_change_is_deployed_and_logged_with_its_sender(caplog: pytest.LogCaptureFixture) -> None:
    controller = FakeController()
    with caplog.at_level(logging.INFO, "ray.serve"):
        answer = await controller.change("tide", {"max_replicas": 4}, "API key 'boss'")

    assert answer == ChangedKnobs(["tide.max_replicas: 1 -> 4"], in_force=True)
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
        await controller.change(scope, knobs)

    assert controller.applied == []


async def test_a_change_repairs_rejected_knobs() -> None:
    controller = FakeController()
    rejected = {"autoscaling": {"tide": {"max_replicas": 0}}}
    controller.details = details(application("shop", "tide", user_config=rejected))

    answer = await controller.change("tide", {"max_replicas": 4})

    assert answer == ChangedKnobs(["tide.max_replicas: 1 -> 4"], in_force=True)
    assert controller.live.of("tide").max_replicas == 4


async def test_no_change_is_made_that_would_delete_an_application() -> None:
    controller = FakeController(
        {"name": "other", "source": "declarative", "status": "DEPLOYING", "deployments": {}}
    )
    with pytest.raises(ApiError, match="would delete") as caught:
        await controller.change("tide", {"max_replicas": 4})

    assert (caught.value.status, controller.applied) == (503, [])


async def test_a_change_that_is_not_in_force_in_time_says_so() -> None:
    controller = FakeController()
    controller.delivered, controller.setter.in_force_s = False, 0.1

    answer = await controller.change("tide", {"max_replicas": 4})

    assert answer == ChangedKnobs(["tide.max_replicas: 1 -> 4"], in_force=False)


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(sorted(CHANGES))), max_size=6, unique_by=itemgetter(1)
    ),
    st.randoms(use_true_random=False),
)
async def test_of_changes_through_several_replicas_none_is_lost(
    asked: list[tuple[int, str]], draw: Random
) -> None:
    controller = FakeController(replicas=3)

    async def pause() -> None:
        for _ in range(draw.randrange(4)):
            await asyncio.sleep(0)

    controller.pause = pause
    answers = await asyncio.gather(
        *(controller.setters[replica].set("tide", {name: CHANGES[name]}, "") for replica, name in asked)
    )

    assert all(answer.in_force for answer in answers)
    for live in controller.replicas:
        assert all(getattr(live.of("tide"), name) == CHANGES[name] for _, name in asked)


async def test_a_deploy_between_read_and_write_is_not_overwritten() -> None:
    controller = FakeController()

    async def deploy_once() -> None:
        controller.pause = partial(asyncio.sleep, 0)
        controller.deploy({"autoscaling": {"tide": {"headroom": 2}}}, {"ui": False})

    controller.pause = deploy_once
    answer = await controller.change("tide", {"max_replicas": 4})

    (config,) = controller.applied
    assert config.applications[0].args["ui"] is False
    assert answer.in_force
    assert (controller.live.of("tide").max_replicas, controller.live.of("tide").headroom) == (4, 2)


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_controller_that_does_not_answer_is_a_503(hangs: bool) -> None:
    controller = FakeController()
    if hangs:
        controller.setter.ray_s = 0.1
        controller.pause = asyncio.Event().wait  # type: ignore[assignment]
    else:
        controller.fails = RayActorError()
    with pytest.raises(ApiError, match="controller did not confirm") as caught:
        await controller.change("tide", {"max_replicas": 4})

    assert (caught.value.status, caught.value.code) == (503, "knobs_unavailable")
