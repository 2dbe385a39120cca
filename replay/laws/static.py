"""A fixed number of replicas."""

from replay.sample import Sample


class Static:
    """Always the same replicas: what one provisions without autoscaling."""

    interval_s = 60.0

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.name = f"static:{replicas}"

    def decide(self, sample: Sample) -> int:
        """The same number at any time."""
        return self.replicas
