"""Who sent a request: the name of its API key, its lane, and its weight."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

Lane = Literal["interactive", "standard", "background"]
"""The class of a request's work. `interactive` goes first. `standard` goes next and is guaranteed a share.
`background` uses only capacity that no other lane needs, and never adds replicas by its latency."""
LANES: tuple[Lane, ...] = get_args(Lane)
"""From the highest priority to the lowest."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, as its API key says. The request's body cannot change it."""

    key: str = ""
    """The name of the API key; "" on a server without keys."""
    lane: Lane = "standard"
    weight: float = 1.0
    """The key's share of tokens within its lane, beside the weights of other keys."""
    budgets: tuple[str, ...] = ()
    """The names of the budgets that pay: `key/NAME` and `team/NAME`."""

    def lowered_to(self, lane: Lane) -> "Caller":
        """Return the caller in `lane`, or unchanged if `lane` has a higher priority than its own."""
        return replace(self, lane=lane) if LANES.index(lane) > LANES.index(self.lane) else self


ANYONE = Caller()
"""The sender of each request on a server without API keys."""
