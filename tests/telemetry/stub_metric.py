"""Ray's metrics, which would need a running Ray to be read back: kept here as they are made."""

from __future__ import annotations

SERIES: dict[str, StubMetric] = {}


class StubMetric:
    """One of Ray's metrics, which would need a running Ray to be read back."""

    def __init__(
        self,
        name: str,
        description: str = "",
        boundaries: list[float] | None = None,
        tag_keys: tuple[str, ...] = (),
    ) -> None:
        assert description
        assert name not in SERIES
        SERIES[name] = self
        self.boundaries = boundaries
        self.tag_keys = tag_keys
        self.values: list[tuple[float, dict[str, str]]] = []
        self.shown: list[dict[str, str]] = []
        """Tags with which it was exported at zero."""

    @classmethod
    def unregistered(cls, name: str) -> StubMetric:
        """One of several of its name, as two models have."""
        SERIES.pop(name, None)
        return cls(name, name)

    def set_default_tags(self, tags: dict[str, str]) -> None:
        self.tags = tags

    def set(self, value: float, tags: dict[str, str] | None = None) -> None:
        self.values.append((value, tags or {}))

    def inc(self, value: float, tags: dict[str, str] | None = None) -> None:
        self.values.append((value, tags or {}))

    def _record(self, value: float, tags: dict[str, str]) -> None:
        """What `inc` refuses to do: zero."""
        assert value == 0.0
        self.shown.append(tags)

    def observe(self, value: float, tags: dict[str, str] | None = None) -> None:
        self.values.append((value, tags or {}))
