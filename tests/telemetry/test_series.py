from __future__ import annotations

from typing import Any

import pytest
from ray.util.metrics import Counter

from serve_app.telemetry.series import show_zero


def test_a_counter_of_rays_is_exported_at_zero_with_all_its_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called for it is Ray's own affair: another version may not have it."""
    recorded: list[tuple[float, dict[str, str]]] = []

    class Core:
        def record(self, value: float, tags: dict[str, str]) -> None:
            recorded.append((value, tags))

    counter: Any = Counter("test_shown_total", "Shown.", tag_keys=("model", "outcome"))
    counter.set_default_tags({"model": "tide"})
    monkeypatch.setattr(counter, "_metric", Core())
    monkeypatch.setattr(counter, "_discard_metric", False)

    show_zero(counter, outcome="ok")

    assert recorded == [(0.0, {"model": "tide", "outcome": "ok"})]
