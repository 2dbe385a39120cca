import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from serve_app.api.errors import ApiError
from serve_app.api.health import ModelReadiness, Readiness
from serve_app.cluster.bounded_call import Answer, BoundedCall
from serve_app.ingress.cold_start_progress import StoredState
from serve_app.ingress.fleet_state import FleetState, KnobSetter, hour_price
from serve_app.settings.knobs import Knobs, LiveKnobs
from serve_app.settings.ledger import LedgerSettings
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import AppSettings
from tests.cli.rest import application, details

PHASES = {"process": 1.0, "imports": 2.0, "warm_up": 3.0}


class FakePolicy:
    """Documents of the policy, and how often records were read."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.read = 0

    async def decisions(self) -> list[dict[str, Any]]:
        self.read += 1
        return list(self.records)

    def knobs(self) -> dict[str, Any]:
        return {"models": {}, "rejected": ""}


class FakeObserver:
    """A model that is up, and empty metrics."""

    def __init__(self) -> None:
        self.scrapes = 0

    async def readiness(self) -> Readiness:
        return Readiness([ModelReadiness("tide", "up", replicas=1)])

    async def metrics(self) -> bytes:
        self.scrapes += 1
        return b""


class Fleet:
    """A state, and the documents that it reads."""

    def __init__(self) -> None:
        self.now = 1000.0
        prices = {"gpu_hour_prices": {"A100": 2.0}}
        models = [{"name": "tide", "tensor_parallel_size": 4}]
        self.settings = AppSettings.model_validate({"models": models, "ledger": prices})
        self.policy, self.observer = FakePolicy(), FakeObserver()
        self.stored = BoundedCall("documents", StoredState, 0.5)
        self.tell(starting=0)
        view: Any = self.policy
        self.state = FleetState(
            self.settings, self.observer, view, self.stored, lambda: self.now, lambda: self.now
        )

    def tell(self, seq: int = 0, phases: dict[str, Any] | None = None, **scaling: Any) -> None:
        model = {"ready": 1, "target": 2, "wanted": 2, "pending": 0, "phases_s": PHASES, **scaling}
        status = {"at": self.now, "decisions_seq": seq, "models": {"Engine-tide": model}}
        self.stored.last = Answer(StoredState(status, {"Engine-tide": phases or {}}), self.now)


def started(phase: str, since: float) -> dict[str, Any]:
    return {"phase": phase, "since": since, "durations_s": {"process": 1.2}}


async def test_a_start_has_its_phases_and_its_eta() -> None:
    fleet = Fleet()
    fleet.tell(phases={"r1": started("imports", 999.0), "old": started("process", 10.0)}, starting=1)

    (start,) = (await fleet.state.parts(True))["models"]["tide"]["starts"]

    assert start == {
        "replica": "r1", "phase": "imports", "phase_s": 1.0, "durations_s": {"process": 1.2},
        "expected_s": PHASES, "eta_s": 4.0,
    }  # fmt: skip


async def test_records_are_read_only_when_there_are_new_ones() -> None:
    fleet = Fleet()
    fleet.policy.records = [{"seq": 1, "at": 10.0}]
    fleet.tell(seq=1)
    assert (await fleet.state.parts(True))["decisions"] == [{"seq": 1, "at": 10.0}]
    assert (await fleet.state.parts(True))["decisions"] == []
    assert fleet.policy.read == 1
    fleet.policy.records.append({"seq": 2, "at": 20.0})
    fleet.tell(seq=2)
    assert (await fleet.state.parts(True))["decisions"] == [{"seq": 2, "at": 20.0}]
    assert [record["seq"] for record in fleet.state.everything()["decisions"]] == [1, 2]


async def test_metrics_are_read_every_5_s_for_listeners_and_every_15_s_without() -> None:
    fleet = Fleet()
    seen = []
    for watched in (False, True):
        for _ in range(30):
            fleet.now += 1.0
            await fleet.state.parts(watched)
        seen.append(fleet.observer.scrapes)

    assert seen == [2, 8]


async def test_a_silent_policy_is_told_with_its_age() -> None:
    fleet = Fleet()
    assert (await fleet.state.parts(True))["policy"] == {"reports": True, "silent_s": None, "errors": 0}
    fleet.now += 20.0
    assert (await fleet.state.parts(True))["policy"]["silent_s"] == 20


def test_a_replica_costs_what_its_devices_cost() -> None:
    (model,) = Fleet().settings.models

    assert hour_price(model, LedgerSettings(gpu_hour_prices={"A100": 2.5})) == 10.0
    assert hour_price(model, LedgerSettings()) is None


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


def setter(controller: FakeController) -> KnobSetter:
    models = AppSettings.model_validate({"models": [{"name": "tide"}]}).models
    return KnobSetter("shop", controller, models, {"tide": Knobs()}, controller.live)


async def test_a_change_is_deployed_and_logged_with_its_sender(caplog: pytest.LogCaptureFixture) -> None:
    controller = FakeController()
    with caplog.at_level(logging.INFO, "ray.serve"):
        changes = await setter(controller)("tide", {"max_replicas": 4}, "API key 'boss'")

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
        await setter(controller)(scope, knobs, "somebody")

    assert controller.applied == []


async def test_no_change_is_made_that_would_delete_an_application() -> None:
    controller = FakeController(
        {"name": "other", "source": "declarative", "status": "DEPLOYING", "deployments": {}}
    )
    with pytest.raises(ApiError, match="would delete") as caught:
        await setter(controller)("tide", {"max_replicas": 4}, "somebody")

    assert (caught.value.status, controller.applied) == (503, [])
