"""Ray Serve while nothing changes, against the installed Ray."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.autoscaling_state import AutoscalingStateManager
from ray.serve._private.controller import ServeController
from ray.serve._private.replica import ReplicaMetricsManager
from ray.serve._private.router import RouterMetricsManager

from serve_app.patches.ray_idle import (
    QUIET_S,
    UNCHANGED_S,
    Rest,
    awaits_checks,
    is_quiet,
    only_changes,
    skip_idle_turns,
)


def turns(rest: Rest, *, until: float, quiet: bool = True, awaits_checks: bool = False) -> list[float]:
    """The times of the turns from now until `until`, of ten looks a second."""
    return [
        tenth / 10
        for tenth in range(round(until * 10))
        if rest.is_due(quiet=quiet, awaits_checks=awaits_checks, now=tenth / 10)
    ]


def test_a_quiet_controller_takes_one_turn_a_second() -> None:
    assert turns(Rest(), until=3.0) == [0.0, 1.0, 2.0]


def test_a_controller_in_transition_takes_all_turns() -> None:
    assert len(turns(Rest(), until=2.0, quiet=False)) == 20


def test_a_transition_is_followed_by_one_more_turn() -> None:
    rest = Rest()
    assert rest.is_due(quiet=False, awaits_checks=False, now=0.0)

    assert rest.is_due(quiet=True, awaits_checks=False, now=0.1)
    assert not rest.is_due(quiet=True, awaits_checks=False, now=0.2)


def test_the_answer_to_a_check_is_awaited_at_rays_pace() -> None:
    rest = Rest()
    assert rest.is_due(quiet=True, awaits_checks=False, now=0.0)

    assert rest.is_due(quiet=True, awaits_checks=True, now=0.1)
    assert not rest.is_due(quiet=True, awaits_checks=False, now=0.2)
    assert rest.is_due(quiet=True, awaits_checks=False, now=QUIET_S)  # the checks of the next second begin


def test_news_are_looked_at_in_the_next_turn() -> None:
    rest = Rest()
    assert rest.is_due(quiet=True, awaits_checks=False, now=0.0)

    rest.wake()

    assert rest.is_due(quiet=True, awaits_checks=False, now=0.1)
    assert not rest.is_due(quiet=True, awaits_checks=False, now=0.2)


def test_news_are_looked_at_again_at_the_next_decision() -> None:
    rest = Rest()
    assert rest.is_due(quiet=True, awaits_checks=False, now=0.0)
    rest.wake()
    assert rest.is_due(quiet=True, awaits_checks=False, now=0.1)

    later = [tenth / 10 for tenth in range(2, 10)]
    assert [now for now in later if rest.is_due(quiet=True, awaits_checks=False, now=now)] == [0.6]


def test_turns_for_news_check_no_more_replicas_than_rays() -> None:
    rest = Rest()
    assert rest.is_due(quiet=True, awaits_checks=False, now=0.0)
    assert rest.checks_all

    rest.wake()

    assert rest.is_due(quiet=True, awaits_checks=False, now=0.3)
    assert not rest.checks_all


def controller(**changes: Any) -> Any:
    """A controller of Ray Serve with nothing in transition, except `changes`, as its attributes."""
    deployment = SimpleNamespace(
        _in_transition=False, _is_gang_deployment=False, _outstanding_dirty_set=set()
    )
    proxy = SimpleNamespace(status="HEALTHY", _actor_proxy_wrapper=SimpleNamespace(_health_check_future=None))
    states = {"deployment": deployment, "proxy": proxy, "application": SimpleNamespace(status="RUNNING")}
    for name, values in changes.items():
        vars(states[name]).update(values)
    return SimpleNamespace(
        _shutting_down=False,
        done_recovering_event=SimpleNamespace(is_set=lambda: True),
        cluster_node_info_cache=SimpleNamespace(get_draining_nodes=dict),
        deployment_state_manager=SimpleNamespace(_deployment_states={"d": deployment}),
        application_state_manager=SimpleNamespace(_application_states={"a": states["application"]}),
        proxy_state_manager=SimpleNamespace(_proxy_states={"n": proxy}),
    )


def test_any_transition_keeps_the_controller_awake() -> None:
    assert is_quiet(controller())
    assert not is_quiet(controller(deployment={"_in_transition": True}))
    assert not is_quiet(controller(application={"status": "DEPLOYING"}))
    assert not is_quiet(controller(proxy={"status": "STARTING"}))
    assert not awaits_checks(controller())
    assert awaits_checks(controller(deployment={"_outstanding_dirty_set": {"r"}}))


async def test_a_quiet_controller_runs_only_the_turns_that_are_due() -> None:
    taken: list[int] = []

    async def turn(number: int) -> None:
        taken.append(number)

    quiet = controller()
    quiet.run_control_loop_step = turn
    skip_idle_turns(quiet)
    for number in range(5):
        await quiet.run_control_loop_step(number)
    assert taken == [0]

    quiet.deployment_state_manager._deployment_states["d"]._in_transition = True
    await quiet.run_control_loop_step(5)
    assert taken == [0, 5]


class Reports:
    """A metrics manager of Ray, as far as `only_changes` sees it."""

    def __init__(self) -> None:
        self.value = 0.0
        self.sent: list[float] = []
        self._pending_metrics_push_ref: object = None
        self.blocked = False

    def push(self) -> None:
        if not self.blocked:
            self.sent.append(self.value)
            self._pending_metrics_push_ref = object()


def test_an_equal_report_is_sent_again_only_later() -> None:
    now, manager = [0.0], Reports()
    push = only_changes(Reports.push, lambda each: each.value, lambda: now[0])

    for value in (1.0, 1.0, 2.0, 2.0):
        manager.value = value
        push(manager)
    now[0] = UNCHANGED_S
    push(manager)

    assert manager.sent == [1.0, 2.0, 2.0]


def test_a_report_that_ray_held_back_is_sent_next_time() -> None:
    manager = Reports()
    push = only_changes(Reports.push, lambda each: each.value, lambda: 0.0)
    manager.blocked = True
    push(manager)

    manager.blocked = False
    push(manager)

    assert manager.sent == [0.0]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ServeController, "run_control_loop_step"),
        (ReplicaMetricsManager, "_push_autoscaling_metrics"),
        (RouterMetricsManager, "push_autoscaling_metrics_to_controller"),
        (AutoscalingStateManager, "record_request_metrics_for_replica"),
        (AutoscalingStateManager, "record_request_metrics_for_handle"),
        (AutoscalingStateManager, "record_columnar_metrics_for_handle"),
    ],
)
def test_ray_has_what_is_changed(owner: type, name: str) -> None:
    assert callable(getattr(owner, name))


async def test_a_controller_of_another_release_takes_all_turns() -> None:
    taken: list[int] = []

    async def turn(number: int) -> None:
        taken.append(number)

    unknown: Any = SimpleNamespace(run_control_loop_step=turn)
    skip_idle_turns(unknown)
    for number in range(3):
        await unknown.run_control_loop_step(number)

    assert taken == [0, 1, 2]
