"""Members of a shared fleet, nodes and traffic for tests, with only what a test is about spelled out."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from serve_app.policy.fleet_members import Member, Replica
from serve_app.wire.resources import Node

GPU = {"GPU": 1.0}
END = 400.0
LONGEST_S = 40.0
"""The longest service, and so the longest drain."""


def member(name: str, *ready_s: float | None, node: str = "n0", **rest: Any) -> Member:
    """A model with a replica on `node` for each age."""
    replicas = tuple(Replica(f"{name}-{number}", node, age) for number, age in enumerate(ready_s))
    defaults = {"wanted": max(1, len(ready_s)), "claim": 0, "minimum": 0, "need": GPU, "start_s": 10.0}
    defaults["target"] = len(ready_s)
    return Member(name, name, replicas=replicas, **{**defaults, **rest})


def waits(name: str, **rest: Any) -> Member:
    return member(name, **{"wanted": 1, "claim": 1, "waiting": 1.0, **rest})


def busy(name: str, *ready_s: float | None, **rest: Any) -> Member:
    return member(name, *ready_s, **{"claim": len(ready_s), "running": 4.0, "rps": 0.5, **rest})


def node(free: float, total: float = 1.0, name: str = "n0") -> Node:
    return Node({"GPU": total}, {"GPU": free}, name)


several = settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def traffic(draw: st.DrawFn, end: float) -> list[tuple[float, float]]:
    """Requests in bursts: when each arrives, and for how long it is served."""
    found: list[tuple[float, float]] = []
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.floats(0, end))
        gap = draw(st.sampled_from([0.0, 0.3, 2.0, 7.0]))
        service = draw(st.sampled_from([0.2, 2.0, 8.0, LONGEST_S]))
        found += [(at + gap * index, service) for index in range(draw(st.integers(1, 40)))]
    return sorted(request for request in found if request[0] < end)
