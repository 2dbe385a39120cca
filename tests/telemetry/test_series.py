import pytest

from serve_app.telemetry.series import E2E_S, INTER_TOKEN_S, TTFT_S


@pytest.mark.parametrize("bounds", [TTFT_S, INTER_TOKEN_S, E2E_S], ids=["ttft", "inter-token", "e2e"])
def test_boundaries_rise_without_repeating(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
    assert bounds[0] > 0


@pytest.mark.parametrize("bounds", [TTFT_S, INTER_TOKEN_S, E2E_S], ids=["ttft", "inter-token", "e2e"])
def test_ten_milliseconds_to_ten_seconds_are_resolved(bounds: tuple[float, ...]) -> None:
    assert {0.01, 10.0} <= set(bounds)
