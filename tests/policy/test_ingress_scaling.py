import math

import pytest

from serve_app.policy.ingress_scaling import IngressDecision, decide_ingress
from serve_app.policy.state import Need
from serve_app.settings.knobs import IngressKnobs
from tests.policy.build import NOW

KNOBS = IngressKnobs(min_replicas=1, max_replicas=8, target_ongoing_requests=100, downscale_delay_s=60)


class Ingress:
    """Ingress replicas that report evenly, a second at a time."""

    def __init__(self, target: int = 1) -> None:
        self.target = target
        self.needs: tuple[Need, ...] = ()
        self.now = NOW

    def see(self, ongoing: float, seconds: int = 1, silent: int = 0) -> IngressDecision:
        for _ in range(seconds):
            self.now += 1
            known = self.target - silent
            reported = {f"i{n}": (ongoing / known, 0.5) for n in range(known)}
            decision = decide_ingress(reported, self.target, self.target, KNOBS, self.needs, self.now)
            self.needs, self.target = decision.recent_needs, decision.target
        return decision


@pytest.mark.parametrize(("ongoing", "replicas"), [(0, 1), (100, 1), (101, 2), (400, 4), (401, 5), (5000, 8)])
def test_ingress_replicas_follow_open_requests_within_bounds(ongoing: float, replicas: int) -> None:
    assert Ingress().see(ongoing).target == replicas


def test_ingress_scale_down_waits_for_its_delay() -> None:
    ingress = Ingress()
    ingress.see(500)

    assert ingress.see(100, 59).target == 5
    assert ingress.see(100, 2).target == 1


def test_a_need_within_the_delay_keeps_its_replicas() -> None:
    ingress = Ingress()
    ingress.see(500)
    ingress.see(100, 30)
    ingress.see(300)

    assert ingress.see(100, 40).target == 3
    assert ingress.see(100, 30).target == 1


def test_after_a_loss_of_memory_the_target_counts_as_needed() -> None:
    ingress = Ingress(target=4)

    assert ingress.see(0).target == 4
    assert ingress.see(0, 58).target == 4
    assert ingress.see(0, 3).target == 1


def test_no_ingress_replica_goes_while_one_is_silent() -> None:
    ingress = Ingress(target=3)
    decision = ingress.see(10, 200, silent=1)

    assert decision.target == 3
    assert decision.reason.endswith(" 1 replica did not report, so no replica is removed.")
    assert ingress.see(700, silent=1).target == 7


@pytest.mark.parametrize("report", [(math.nan, 0.5), (math.inf, 0.5), (50.0, 11.0), (50.0, math.nan)])
def test_an_unusable_report_makes_its_replica_silent(report: tuple[float, float]) -> None:
    decision = decide_ingress({"i0": report}, 2, 2, KNOBS, (Need(NOW - 999, 2),), NOW)

    assert (decision.target, "replicas did not report" in decision.reason) == (2, True)


def test_a_huge_number_is_the_maximum() -> None:
    assert decide_ingress({"i0": (1e308, 0.5), "i1": (1e308, 0.5)}, 2, 2, KNOBS, (), NOW).target == 8


@pytest.mark.parametrize(("room", "target"), [(None, 5), (9, 5), (2, 3), (0, 1)])
def test_ingress_takes_only_the_room_beside_the_engines(room: int | None, target: int) -> None:
    decision = decide_ingress({"i0": (500.0, 0.5)}, 1, 1, KNOBS, (), NOW, room)

    assert (decision.target, decision.wanted) == (target, 5)
    assert ("because engine replicas need the rest" in decision.reason) is (target < 5)


def test_the_minimum_too_waits_for_room() -> None:
    two = KNOBS.model_copy(update={"min_replicas": 2})

    assert decide_ingress({"i0": (0.0, 0.5)}, 1, 1, two, (), NOW, 0).target == 1
    assert decide_ingress({"i0": (0.0, 0.5)}, 1, 1, two, (), NOW, 1).target == 2


def test_changed_bounds_move_the_target_and_missing_room_does_not() -> None:
    few = KNOBS.model_copy(update={"max_replicas": 2})

    assert decide_ingress({f"i{n}": (100.0, 0.5) for n in range(4)}, 4, 4, KNOBS, (), NOW, 0).target == 4
    assert decide_ingress({"i0": (900.0, 0.5)}, 1, 5, few, (), NOW, 0).target == 2
    assert decide_ingress({"i0": (900.0, 0.5)}, 1, 5, few, (), NOW).target == 2
