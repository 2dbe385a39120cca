from __future__ import annotations

import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from serve_app.api.errors import ApiError
from serve_app.transport.waiting import queue_full, unavailable, wait_for_replica
from tests.transport.stub_handle import StubHandle


async def refusal(handle: StubHandle, left_s: float = 600.0) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await wait_for_replica(handle, "tide", left_s, 600.0)
    return caught.value


async def test_a_replica_ends_the_wait_and_is_not_kept_reserved() -> None:
    handle = StubHandle()

    await wait_for_replica(handle, "tide", 600.0, 600.0)

    assert (handle.chosen, handle.held) == (1, 0)


@pytest.mark.parametrize("left_s", [0.0, -1.0])
async def test_no_replica_in_time_is_a_503_with_the_time_it_was_allowed(left_s: float) -> None:
    error = await refusal(StubHandle(holds=True), left_s)

    assert (error.status, error.code) == (503, "model_unavailable")
    assert error.message == "Model 'tide': no replica could take the request within 600 s."
    assert error.headers == {"Retry-After": "5"}


async def test_a_full_queue_is_a_429() -> None:
    error = await refusal(StubHandle(refuses=BackPressureError(3, 2)))

    assert (error.status, error.code, error.headers) == (429, "queue_full", {"Retry-After": "1"})


async def test_engines_that_cannot_start_are_a_503_that_points_to_the_reason() -> None:
    error = await refusal(StubHandle(refuses=DeploymentUnavailableError(DeploymentID("Engine-tide", "app"))))

    assert (error.status, error.code, error.headers) == (503, "model_unavailable", {"Retry-After": "30"})
    assert "/ready" in error.message


def test_both_refusals_name_the_model_and_when_to_come_back() -> None:
    assert unavailable("tide", "gone.", 7).message == "Model 'tide': gone."
    assert unavailable("tide", "gone.", 7).headers == {"Retry-After": "7"}
    assert queue_full("tide").message == "Model 'tide': too many requests are waiting."
