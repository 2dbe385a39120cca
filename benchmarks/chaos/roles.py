"""The kinds of processes of an application, how each is recognised, and what its loss may cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Signal = Literal["kill", "stop"]

UNANSWERED_S = 2.0
"""No new request waits longer for its answer, whichever process is gone, while an engine lives."""
STATE_S = 2.0
"""How old a state that `/ready` tells may be."""
HUNG_S = 5.0
"""A stopped engine or ingress replica has to be told from a busy one, so its bounds are longer."""
ANSWER_S = 1.0
"""`/ready` waits no longer than this for anybody."""
HEALTH_P99_S = 0.05


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of process."""

    name: str
    title: re.Pattern[str]
    """Found in its command line, its arguments joined by blanks."""
    serves_connection: bool = False
    """Clients' own TCP connections end in it, or with it: its loss may cut streams."""
    may_hang: bool = False
    """It has work of its own, so that only time tells a stopped one from a busy one."""
    ends_node: bool = False
    """Ray ends the node, or the cluster, with it: afterwards the server is a new one."""
    comes_back: bool = True
    """It is started again at once. The next engine that starts brings a lost zygote back."""

    def bounds(self, signal: Signal) -> Bounds:
        """What clients may see when a process of this role gets `signal`."""
        hung = signal == "stop" and self.may_hang
        return Bounds(
            cut=self.serves_connection,
            unanswered_s=HUNG_S if hung else UNANSWERED_S,
            state_s=HUNG_S if hung else STATE_S,
            ready_answer_s=HUNG_S if hung else ANSWER_S,
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """The goals of one event."""

    cut: bool
    """Whether streams may be cut."""
    unanswered_s: float
    state_s: float
    ready_answer_s: float


def _title(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


ENGINE_REPLICA, ENGINE_CORE, INGRESS, HAPROXY = "engine-replica", "engine-core", "ingress", "haproxy"
ZYGOTE, RAYLET = "zygote", "raylet"

ROLES: tuple[Role, ...] = (
    Role("controller", _title(r"^ray::ServeController\b")),
    Role(ENGINE_REPLICA, _title(r"^ray::ServeReplica:[^:]+:Engine-"), may_hang=True),
    Role(ENGINE_CORE, _title(r"^VLLM::EngineCore"), may_hang=True),
    Role(ZYGOTE, _title(r"^tideserve::Zygote"), comes_back=False),
    Role("tideserve-python", _title(r"/tideserve-python "), may_hang=True),
    Role(HAPROXY, _title(r"^\S*/haproxy .*-f "), serves_connection=True),
    Role("haproxy-supervisor", _title(r"serve_app\.haproxy\.supervisor|/tideserve-front ")),
    Role("haproxy-manager", _title(r"^ray::HAProxyManager\b")),
    Role(INGRESS, _title(r"^ray::ServeReplica:[^:]+:Ingress\b"), serves_connection=True, may_hang=True),
    Role("fallback-proxy", _title(r"^ray::ProxyActor\b")),
    Role("dashboard", _title(r"/ray/dashboard/dashboard\.py ")),
    Role("dashboard-agent", _title(r"^ray::DashboardAgent\b"), ends_node=True),
    Role("runtime-env-agent", _title(r"^ray::RuntimeEnvAgent\b"), ends_node=True),
    Role("gcs", _title(r"^\S*/gcs_server "), ends_node=True),
    Role(RAYLET, _title(r"^\S*/raylet/raylet "), serves_connection=True, ends_node=True),
    Role(
        "serve-run",
        _title(r" -m (serve_app\.cli\.driver|ray\.serve\.scripts) run "),
        serves_connection=True,
        ends_node=True,
    ),
    Role(
        "tideserve-run",
        _title(r"( -m serve_app\.cli\.main|/tideserve) run "),
        serves_connection=True,
        ends_node=True,
    ),
)
"""In the order in which they are attacked: what ends the node comes last."""

NODE = Role("node", _title(r"$^"), serves_connection=True)
"""Every process of a raylet's node at once, as when its machine is lost."""

BY_NAME = {role.name: role for role in (*ROLES, NODE)}


def role_of(command_line: Sequence[str]) -> str | None:
    """The role of the process with this command line, or None for another process."""
    line = " ".join(command_line)
    for role in ROLES:
        if role.title.search(line):
            return role.name
    return None
