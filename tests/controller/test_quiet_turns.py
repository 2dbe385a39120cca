"""Ray's managers are stand-ins that have what the turns look at; integration tests run Ray's own."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.application_state import ApplicationStateManager
from ray.serve._private.autoscaling_state import AutoscalingStateManager
from ray.serve._private.common import DeploymentStatus, ReplicaState, TimeStampedValue
from ray.serve._private.deployment_state import DeploymentStateManager
from ray.serve._private.proxy_state import ProxyStateManager
from ray.serve.schema import ApplicationStatus, ProxyStatus

from serve_app.controller.quiet_turns import QuietTurns, leave_out_quiet_turns


class Replicas:
    """One deployment's, as Ray's `ReplicaStateContainer` holds them."""

    def __init__(self, running: int, others: int = 0, failures: int = 0) -> None:
        actor = SimpleNamespace(_consecutive_health_check_failures=failures)
        self.running = [SimpleNamespace(_actor=actor) for _ in range(running)]
        self.others = others

    def get(self, states: list[ReplicaState]) -> list[Any]:
        assert states == [ReplicaState.RUNNING]
        return self.running

    def count(self) -> int:
        return len(self.running) + self.others


def deployments(
    replicas: Replicas, target: int = 1, status: DeploymentStatus = DeploymentStatus.HEALTHY
) -> Any:
    state = SimpleNamespace(
        _replicas=replicas, target_num_replicas=target, curr_status_info=SimpleNamespace(status=status)
    )
    return SimpleNamespace(_deployment_states={"a": state})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


SETTLED = deployments(Replicas(1))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> QuietTurns:
    """An application that runs behind a healthy proxy, with one turn taken."""
    made = QuietTurns(clock)
    made.applications = SimpleNamespace(
        _application_states={"tideserve": SimpleNamespace(status=ApplicationStatus.RUNNING)}
    )
    made.proxies = SimpleNamespace(
        _proxy_states={"node": SimpleNamespace(status=ProxyStatus.HEALTHY)}, _fallback_proxy_state=None
    )
    assert made.begin(SETTLED)
    return made


def taken(turns: QuietTurns, clock: Clock, manager: Any, count: int = 10) -> int:
    """How many of the next turns are taken, a tenth of a second apart."""
    found = 0
    for _ in range(count):
        clock.now += 0.1003
        found += turns.begin(manager)
    return found


def test_two_of_ten_turns_are_taken_while_everything_is_as_it_should_be(
    turns: QuietTurns, clock: Clock
) -> None:
    assert taken(turns, clock, SETTLED) == 2


@pytest.mark.parametrize(
    "manager",
    [
        deployments(Replicas(1), target=2),
        deployments(Replicas(1), target=0),
        deployments(Replicas(1, others=1)),
        deployments(Replicas(0, others=1)),
        deployments(Replicas(1, failures=1)),
        deployments(Replicas(1), status=DeploymentStatus.UPSCALING),
        deployments(Replicas(1), status=DeploymentStatus.UNHEALTHY),
    ],
)
def test_every_turn_is_taken_while_a_replica_starts_stops_fails_or_is_wanted(
    turns: QuietTurns, clock: Clock, manager: Any
) -> None:
    assert taken(turns, clock, manager) == 10


@pytest.mark.parametrize(
    "status", [each for each in ApplicationStatus if each is not ApplicationStatus.RUNNING]
)
def test_every_turn_is_taken_while_an_application_is_deployed_or_deleted(
    turns: QuietTurns, clock: Clock, status: ApplicationStatus
) -> None:
    turns.applications._application_states["other"] = SimpleNamespace(status=status)

    assert taken(turns, clock, SETTLED) == 10


@pytest.mark.parametrize("status", [each for each in ProxyStatus if each is not ProxyStatus.HEALTHY])
@pytest.mark.parametrize("fallback", [False, True])
def test_every_turn_is_taken_while_a_proxy_is_not_healthy(
    turns: QuietTurns, clock: Clock, status: ProxyStatus, fallback: bool
) -> None:
    state = SimpleNamespace(status=status)
    if fallback:
        turns.proxies._fallback_proxy_state = state
    else:
        turns.proxies._proxy_states["other"] = state

    assert taken(turns, clock, SETTLED) == 10


def test_every_turn_is_taken_before_all_managers_are_known(clock: Clock) -> None:
    assert taken(QuietTurns(clock), clock, SETTLED) == 10


def test_every_turn_is_taken_where_ray_lacks_what_is_looked_at(
    turns: QuietTurns, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    assert taken(turns, clock, SimpleNamespace()) == 10
    assert len(caplog.records) == 1


def test_the_turn_after_a_call_is_taken(turns: QuietTurns, clock: Clock) -> None:
    turns.wake()

    assert taken(turns, clock, SETTLED, 1) == 1
    assert taken(turns, clock, SETTLED, 1) == 0


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of Ray's managers that have been called."""
    seen: list[str] = []
    for manager in (DeploymentStateManager, ApplicationStateManager, ProxyStateManager):
        name = manager.__name__
        monkeypatch.setattr(manager, "update", lambda *_, name=name, **__: seen.append(name) or True)
    monkeypatch.setattr(
        AutoscalingStateManager, "record_request_metrics_for_replica", lambda *_: seen.append("report")
    )
    return seen


def turn(turns: QuietTurns, manager: Any) -> bool:
    """What Ray's control loop does in one turn."""
    recovering = DeploymentStateManager.update(manager, proxy_nodes=set())
    ApplicationStateManager.update(turns.applications)
    ProxyStateManager.update(turns.proxies, proxy_nodes=set())
    return bool(recovering)


def test_in_a_turn_that_is_left_out_no_manager_is_updated(
    turns: QuietTurns, clock: Clock, called: list[str]
) -> None:
    leave_out_quiet_turns(turns)
    clock.now += 0.5
    assert turn(turns, SETTLED)
    assert called == ["DeploymentStateManager", "ApplicationStateManager", "ProxyStateManager"]

    called.clear()
    clock.now += 0.1
    assert not turn(turns, SETTLED)
    assert called == []


@pytest.mark.parametrize(("held", "next_taken"), [(0.0, False), (2.0, True)])
def test_a_report_of_held_requests_has_the_next_turn_taken(
    turns: QuietTurns, clock: Clock, called: list[str], held: float, next_taken: bool
) -> None:
    leave_out_quiet_turns(turns)
    values = {"ongoing_requests": 4.0, "Engine-a:arrivals_total": 9.0, "Engine-a:held_requests": held}
    metrics = {name: [TimeStampedValue(clock.now, value)] for name, value in values.items()}

    AutoscalingStateManager.record_request_metrics_for_replica(None, SimpleNamespace(metrics=metrics))
    assert called == ["report"]
    clock.now += 0.1
    turn(turns, SETTLED)

    assert (turns.taken, len(called)) == (next_taken, 4 if next_taken else 1)
