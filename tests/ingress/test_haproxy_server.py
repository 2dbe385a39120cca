"""How long a stopping ingress replica accepts requests, on an explicit clock."""

import pytest

from serve_app.ingress.haproxy_server import ReplicaStates, wait_for_successor

STOPPING: ReplicaStates = {"STOPPING": 1}


class Ray:
    """Ray Serve's answers about the ingress replicas, one after the other; the last one for ever."""

    def __init__(self, *answers: ReplicaStates | None) -> None:
        self.now = 100.0
        self._answers = list(answers)

    async def states(self) -> ReplicaStates | None:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def waited_s(self) -> tuple[float, bool]:
        """Return the seconds, and whether another replica runs."""
        began = self.now
        another = await wait_for_successor(self.states, self.sleep, lambda: self.now)
        return self.now - began, another


@pytest.mark.parametrize(
    ("states", "another"),
    [
        pytest.param({"STOPPING": 1, "RUNNING": 1, "STARTING": 1}, True, id="another runs"),
        pytest.param(STOPPING, False, id="the application is deleted"),
        pytest.param({}, False, id="Ray no longer knows the deployment"),
    ],
)
async def test_replica_that_nobody_waits_for_stops_at_once(states: ReplicaStates, another: bool) -> None:
    assert await Ray(states).waited_s() == (0.0, another)


async def test_only_replica_accepts_until_haproxy_knows_its_successor() -> None:
    starting, runs = {"STOPPING": 1, "STARTING": 1}, {"STOPPING": 1, "RUNNING": 1}

    waited_s = await Ray(*[starting] * 20, {"STOPPING": 1, "UPDATING": 1}, runs).waited_s()

    assert waited_s == (20 * 0.5 + 0.5 + 10.0, True)


@pytest.mark.parametrize("states", [{"STOPPING": 1, "STARTING": 1}, None], ids=["no room", "Ray is silent"])
async def test_wait_for_a_successor_has_a_bound(states: ReplicaStates | None) -> None:
    assert await Ray(states).waited_s() == (120.0, False)
