import pytest

from serve_app.telemetry.series import E2E_S, INTER_TOKEN_S, TTFT_S


@pytest.mark.parametrize(
    "bounds", [TTFT_S, INTER_TOKEN_S, E2E_S], ids=["ttft", "inter-token", "e2e"]
)
def test_boundaries_rise_without_repeating(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
    assert bounds[0] > 0


@pytest.mark.parametrize(
    ("bounds", "targets"),
    [(TTFT_S, (0.1, 0.2, 0.5)), (INTER_TOKEN_S, (0.015, 0.025, 0.04))],
)
def test_a_target_lies_on_a_boundary_with_a_narrow_bucket_on_either_side(
    bounds: tuple[float, ...], targets: tuple[float, ...]
) -> None:
    """A P95 near a target is interpolated within its bucket: 10 % wide keeps the error below that."""
    for target in targets:
        at = bounds.index(target)

        assert bounds[at + 1] - target <= 0.1001 * target
        assert target - bounds[at - 1] <= 0.1001 * target


@pytest.mark.parametrize("bounds", [TTFT_S, INTER_TOKEN_S, E2E_S], ids=["ttft", "inter-token", "e2e"])
def test_ten_milliseconds_to_ten_seconds_are_resolved(bounds: tuple[float, ...]) -> None:
    assert {0.01, 10.0} <= set(bounds)
