"""What a client that asked for a stream is told while its request waits for a replica."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColdWait:
    """What is known of a request's wait for a replica, at one moment. Times in seconds."""

    model: str
    phase: str
    """How far the replica nearest to readiness is."""
    eta_s: float | None
    """Until that replica is expected to be ready; None where nothing was ever measured."""
    waited_s: float

    def comment(self) -> bytes:
        """The SSE comment that tells a client: ignored by parsers, readable by people."""
        eta = "unknown" if self.eta_s is None else str(math.ceil(self.eta_s))
        return (
            f": waiting for a replica of {self.model}: phase={self.phase} eta_s={eta} "
            f"waited_s={int(self.waited_s)}\n\n"
        ).encode()
