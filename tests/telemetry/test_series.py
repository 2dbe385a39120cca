from typing import Any

import pytest
from ray.util.metrics import Counter

from serve_app.telemetry.series import E2E_S, HUNDRED_TOKENS_S, INTER_TOKEN_S, TTFT_S, show_zero


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


@pytest.mark.parametrize(
    "bounds", [TTFT_S, INTER_TOKEN_S, HUNDRED_TOKENS_S, E2E_S], ids=["ttft", "inter-token", "hundred", "e2e"]
)
def test_boundaries_rise_without_repeating(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
    assert bounds[0] > 0


@pytest.mark.parametrize("bounds", [TTFT_S, INTER_TOKEN_S, E2E_S], ids=["ttft", "inter-token", "e2e"])
def test_ten_milliseconds_to_ten_seconds_are_resolved(bounds: tuple[float, ...]) -> None:
    assert {0.01, 10.0} <= set(bounds)
