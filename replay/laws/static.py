"""A fixed number of replicas."""

from __future__ import annotations

from replay.sample import Sample


class Static:
    """Always the same replicas: what one provisions without autoscaling.

    Args:
        replicas: How many.
    """

    interval_s = 60.0

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas

    @property
    def name(self) -> str:
        """With its number."""
        return f"static:{self.replicas}"

    def decide(self, sample: Sample) -> int:
        """The number."""
        return self.replicas
