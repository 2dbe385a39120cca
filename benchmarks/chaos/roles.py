"""The kinds of processes of an application, their titles, and the bounds on the cost of a loss."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Signal = Literal["kill", "stop"]

ENGINE_REPLICA, ENGINE_CORE, INGRESS, HAPROXY = "engine-replica", "engine-core", "ingress", "haproxy"
ZYGOTE = "zygote"
HEALTH_P99_S = 0.05


@dataclass(frozen=True, slots=True)
class Bounds:
    """The goals of one event, in seconds."""

    unanswered_s: float = 2.0
    """The longest wait of a new request while an engine lives."""
    ready_age_s: float = 2.0
    """The longest time for which `/ready` may say a state that is over."""
    ready_answer_s: float = 1.0


_HUNG = Bounds(unanswered_s=5.0, ready_age_s=5.0, ready_answer_s=5.0)
"""Only time tells a stopped engine or ingress replica from a busy one, so its bounds are longer."""


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of process."""

    name: str
    title: str
    """A pattern that is found in its command line."""
    serves_connection: bool = False
    """Clients' TCP connections end in this process, or with it: its loss may cut streams."""
    may_hang: bool = False
    """It has work of its own, so that only time tells a stopped one from a busy one."""
    ends_node: bool = False
    """Ray ends the node with this process. Afterwards the server is a new one."""
    comes_back: bool = True
    """It is started again at once. Only the next engine that starts brings a lost zygote back."""

    def bounds(self, signal: Signal) -> Bounds:
        """The goals for clients when a process of this role gets `signal`."""
        return _HUNG if signal == "stop" and self.may_hang else Bounds()


ROLES: tuple[Role, ...] = (
    Role("controller", r"^ray::ServeController\b"),
    Role(ENGINE_REPLICA, r"^ray::ServeReplica:[^:]+:Engine-", may_hang=True),
    Role(ENGINE_CORE, r"^VLLM::EngineCore", may_hang=True),
    Role(ZYGOTE, r"^tideserve::Zygote", comes_back=False),
    Role("tideserve-python", r"/tideserve-python ", may_hang=True),
    Role(HAPROXY, r"^\S*/haproxy .*-f ", serves_connection=True),
    Role("haproxy-supervisor", r"serve_app\.haproxy\.supervisor|/tideserve-front "),
    Role("haproxy-manager", r"^ray::HAProxyManager\b"),
    Role(INGRESS, r"^ray::ServeReplica:[^:]+:Ingress\b", serves_connection=True, may_hang=True),
    Role("batch-runner", r"^ray::ServeReplica:[^:]+:BatchRunner\b"),
    Role("dashboard", r"/ray/dashboard/dashboard\.py "),
    Role("dashboard-agent", r"^ray::DashboardAgent\b", ends_node=True),
    Role("runtime-env-agent", r"^ray::RuntimeEnvAgent\b", ends_node=True),
    Role("gcs", r"^\S*/gcs_server ", ends_node=True),
    Role("raylet", r"^\S*/raylet/raylet ", serves_connection=True, ends_node=True),
    Role("serve-run", r" -m (serve_app\.cli\.driver|ray\.serve\.scripts) run ", True, ends_node=True),
    Role("tideserve-run", r"( -m serve_app\.cli\.main|/tideserve) run ", True, ends_node=True),
)
"""In the order in which they are attacked: processes that end the node come last."""

BY_NAME = {role.name: role for role in ROLES}


def role_of(command_line: Sequence[str]) -> str | None:
    """The role of the process with this command line, or None for another process."""
    line = " ".join(command_line)
    return next((role.name for role in ROLES if re.search(role.title, line)), None)
