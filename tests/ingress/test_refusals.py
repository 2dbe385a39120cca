import pytest

from serve_app.ingress.cold_start_progress import UNKNOWN, ColdStartProgress
from serve_app.ingress.refusals import (
    cannot_start,
    queue_is_full,
    replicas_busy,
    retry_after,
    unavailable,
    waited_too_long,
)


@pytest.mark.parametrize(
    ("eta_s", "header"), [(None, "30"), (0.0, "1"), (0.2, "1"), (1.0, "1"), (41.01, "42"), (600.0, "600")]
)
def test_retry_after_is_the_eta_of_a_replica(eta_s: float | None, header: str) -> None:
    assert retry_after(ColdStartProgress("imports", eta_s)) == header


def test_every_refusal_names_the_model_and_when_to_come_back() -> None:
    for error, status, code, header in (
        (unavailable("tide", "gone."), 503, "model_unavailable", "5"),
        (cannot_start("tide"), 503, "model_unavailable", "30"),
        (replicas_busy("tide", 1000), 429, "queue_full", "1"),
        (queue_is_full("tide", 9, 9, UNKNOWN), 429, "queue_full", "30"),
        (waited_too_long("tide", 600.0, UNKNOWN), 503, "cold_wait_timeout", "30"),
    ):
        assert error.message.startswith("Model 'tide': ")
        assert (error.status, error.code, error.headers) == (status, code, {"Retry-After": header})


def test_bounds_are_named_with_their_setting_and_their_value() -> None:
    assert "max_ongoing_requests = 1000" in replicas_busy("tide", 1000).message
    assert "already queues 8 others (max_held_requests = 9)" in queue_is_full("tide", 8, 9, UNKNOWN).message
    assert "(cold_wait_timeout_s = 600)" in waited_too_long("tide", 600.0, UNKNOWN).message
