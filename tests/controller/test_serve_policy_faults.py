"""A policy that raises, under Ray's own application state: targets are kept, and it is said."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from serve_app.controller import serve_policy
from serve_app.controller.serve_policy import ServePolicy
from serve_app.policy.decide import Decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import Memory, MixSums, PolicyState
from serve_app.settings.tree import INGRESS
from serve_app.wire.served_models import ServedModel
from tests.policy.fake_application import KNOBS, Clock, FakeApplication, holding


class RaisesForA(ServePolicy):
    """Cannot decide for model a."""

    def decide(
        self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float
    ) -> tuple[Decision, PolicyState]:
        if model.name == "a":
            raise ZeroDivisionError("no such luck")
        return super().decide(model, snapshot, state, now)


def test_policy_that_raises_for_a_model_keeps_only_that_target(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    app = FakeApplication(clock, {"a": KNOBS, "b": KNOBS}, policy=RaisesForA, targets={"a": 2})
    with caplog.at_level(logging.CRITICAL, "ray.serve"):
        for _ in range(50):
            app.queue_in_ray("a", 9.0)
            app.reports(a=holding(80), b=holding(24))
            app.tick()

    assert (app.target("a"), app.target("b")) == (2, 3)
    assert app.metrics.errors == 50
    assert app.mailbox.outbox.status["policy_errors"] == 50


def test_the_same_error_is_recorded_once_in_ten_seconds(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    app = FakeApplication(clock, {"a": KNOBS}, policy=RaisesForA, targets={"a": 2})
    with caplog.at_level(logging.ERROR, "ray.serve"):
        for _ in range(42):
            app.tick()

    errors = app.records("a")
    assert [record["kind"] for record in errors] == ["error"] * 3
    assert errors[0]["reason"] == "The policy raised ZeroDivisionError: no such luck. The target is kept."
    assert (errors[0]["old_target"], errors[0]["new_target"], errors[0]["ready"]) == (2, 2, 2)
    assert len([line for line in caplog.records if "the policy raised" in line.message]) == 3


class RaisesAtAll(ServePolicy):
    """Fails outside of any one model."""

    def _answer(self, contexts: Any, now: float) -> Any:
        raise RuntimeError("all is lost")


def test_no_exception_of_the_policy_reaches_ray(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    app = FakeApplication(clock, {"a": KNOBS}, policy=RaisesAtAll, targets={"a": 2})
    with caplog.at_level(logging.CRITICAL, "ray.serve"):
        app.queue_in_ray("a", 9.0)
        for _ in range(5):
            app.tick()

    assert app.target("a") == 2
    assert app.metrics.errors == 5
    # What happened is reported all the same.
    assert app.mailbox.outbox.status["policy_errors"] == 5
    assert app.mailbox.outbox.decisions[-1]["kind"] == "error"


def test_an_error_of_the_ingress_decision_delays_no_model(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise RuntimeError("no ingress today")

    monkeypatch.setattr(serve_policy, "decide_ingress", fails)
    app = FakeApplication(clock, {"a": KNOBS})
    with caplog.at_level(logging.CRITICAL, "ray.serve"):
        for _ in range(4):
            app.reports(a=holding(24))
            app.tick()

    assert app.target("a") == 3
    assert app.targets[INGRESS] == 1
    assert app.metrics.errors == 4


class CannotBearItsMemory(ServePolicy):
    """Raises as long as it remembers a request."""

    def decide(
        self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float
    ) -> tuple[Decision, PolicyState]:
        if state.sums.arrivals:
            raise ValueError("what was that?")
        return super().decide(model, snapshot, state, now)


def test_memory_that_breaks_policy_is_dropped_after_ten_seconds(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    app = FakeApplication(clock, {"a": KNOBS}, policy=CannotBearItsMemory, targets={"a": 1})
    app.policy.memories["Engine-a"] = Memory(PolicyState(sums=MixSums(arrivals=5, bytes=500)))
    with caplog.at_level(logging.CRITICAL, "ray.serve"):
        for _ in range(24):
            app.tick(0.5)

    assert app.metrics.errors == 1 + 10 * 2
    assert app.records("a")[-1]["kind"] != "error"


def test_metrics_show_rejected_knobs(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS})
    app.tick()
    assert not app.metrics.gauges["autoscaling_knobs_rejected"]

    served = app.mailbox.inbox.served
    assert served is not None
    app.mailbox.inbox = replace(app.mailbox.inbox, served=replace(served, rejected="max_replicas = 0: …"))
    app.tick()

    assert app.metrics.gauges["autoscaling_knobs_rejected"]
