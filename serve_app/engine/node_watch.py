"""Watch whether the end of a replica's node is announced (`serve_app.cluster.node_end`)."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.node_end import draining_nodes

_POLL_S = 1.0
_WAIT_S = 2.0


@dataclass(eq=False)
class NodeWatch:
    """Knows when the node of this replica ends."""

    node: str
    """Ray's name of the node."""
    on_notice: Callable[[float], None]
    """Called once, when the end is first known, with the seconds until then."""
    read: Callable[[], Mapping[str, float]] = draining_nodes
    """Returns the Unix times at which nodes end. They are set on this machine, mostly."""
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._call = BoundedCall("the announced ends of nodes", self.read, 0.0)
        self._ends_at: float | None = None
        self._told = False

    @property
    def ends_in_s(self) -> float | None:
        """The seconds until the node ends; None while no end is announced."""
        return None if self._ends_at is None else max(0.0, self._ends_at - self.wall())

    async def watch(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_POLL_S)

    async def look(self) -> None:
        """Read the announcements. If Ray does not answer, the last answer stays."""
        answer = await self._call.get(_WAIT_S)
        self._ends_at = None if answer is None else answer.value.get(self.node)
        if (left_s := self.ends_in_s) is not None and not self._told:
            self._told = True
            self.on_notice(left_s)
