"""How often the policy decides."""

from itertools import pairwise
from typing import Any

import pytest

from tests.policy.fake_application import KNOBS, Clock, FakeApplication, holding

ADVISE = KNOBS.model_copy(update={"mode": "advise"})
"""Whatever is held, the targets stay as they are."""


@pytest.mark.parametrize(("target", "requests", "interval_s"), [(1, 3, 0.5), (0, 0, 0.5), (0, 3, 0.125)])
def test_decisions_come_twice_a_second_and_faster_for_queued_requests(
    clock: Clock, target: int, requests: int, interval_s: float
) -> None:
    app = FakeApplication(clock, {"a": ADVISE}, targets={"a": target})
    at: list[float] = []
    decide = app.policy.decide
    app.policy.decide = lambda *args: (at.append(clock.now), decide(*args))[1]  # type: ignore[method-assign]
    for _ in range(50):
        app.reports(a=holding(requests))
        app.tick(0.125)  # about as often as Ray asks

    gaps = {later - earlier for earlier, later in pairwise(at[1:])}
    assert gaps == {interval_s}


def test_an_unreadable_report_is_counted_as_an_error(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": ADVISE}, targets={"a": 0})
    app.tick()

    class Unreadable:
        app_name, deployment_name, target_num_replicas = "tideserve", "Ingress", 0

        @property
        def raw_metrics(self) -> Any:
            raise ValueError("what was that?")

    clock.now += 0.1
    assert app.policy({"Ingress": Unreadable()}) == ({}, {})
    assert app.metrics.errors == 1
