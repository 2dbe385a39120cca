import asyncio
import logging

import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from serve_app.ingress import wake
from serve_app.ingress.wake import Wake
from serve_app.patches.ray import run_router_here
from tests.ingress.stub_handle import StubHandle
from tests.stub_engine import LIMIT_S

UNAVAILABLE = DeploymentUnavailableError(DeploymentID("Engine-tide", "app"))


class Asked:
    """A wake, and whether anybody needs a replica."""

    def __init__(self, handle: StubHandle) -> None:
        self.needed = True
        self.unavailable = 0
        self.wake = Wake("tide", handle, lambda: self.needed, self._on_unavailable)

    def _on_unavailable(self) -> None:
        self.unavailable += 1

    async def end(self) -> None:
        """Wait until the question is answered, or taken back."""
        assert self.wake._task is not None
        async with asyncio.timeout(LIMIT_S):
            await asyncio.wait((self.wake._task,))


async def test_rays_router_runs_in_the_loop_of_the_requests_where_its_queue_can_be_left() -> None:
    handle = StubHandle()

    Wake("tide", handle, lambda: True, lambda: None)

    assert handle.init_options == {"_run_router_in_separate_loop": False}
    run_router_here(handle)  # once: Ray allows no second time


async def test_however_often_it_is_started_ray_is_asked_once() -> None:
    handle = StubHandle(holds=True)
    asked = Asked(handle)

    for _ in range(24):
        asked.wake.start()
    await handle.asked.wait()
    asked.wake.start()
    await asyncio.sleep(0)

    assert (handle.chosen, handle.asking) == (1, 1)
    asked.wake.stop()


async def test_it_ends_with_a_replica_which_is_not_kept_reserved() -> None:
    handle = StubHandle(on_choose=lambda: setattr(asked, "needed", False))
    asked = Asked(handle)

    asked.wake.start()
    await asked.end()

    assert (handle.chosen, handle.held) == (1, 0)


async def test_a_question_that_is_taken_back_leaves_rays_queue() -> None:
    handle = StubHandle(holds=True)
    asked = Asked(handle)
    asked.wake.start()
    await handle.asked.wait()
    task = asked.wake._task
    assert task is not None

    asked.wake.stop()
    await asyncio.wait((task,))

    assert handle.asking == 0
    assert task.cancelled()


async def test_it_can_be_asked_again() -> None:
    handle = StubHandle(holds=True)
    asked = Asked(handle)
    asked.wake.start()
    await handle.asked.wait()
    asked.wake.stop()
    handle.asked.clear()

    asked.wake.start()
    await handle.asked.wait()

    assert handle.chosen == 2
    asked.wake.stop()


async def test_stopping_what_was_never_started_is_nothing() -> None:
    Asked(StubHandle()).wake.stop()


async def test_engines_that_cannot_start_are_told_and_asked_for_no_more() -> None:
    handle = StubHandle(refuses=UNAVAILABLE)
    asked = Asked(handle)

    asked.wake.start()
    await asked.end()

    assert (handle.chosen, asked.unavailable) == (1, 1)


async def test_engines_that_turn_out_not_to_start_are_noticed_while_the_question_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray says so to new requests only."""
    monkeypatch.setattr(wake, "_ASK_AGAIN_S", 0.001)
    handle = StubHandle(holds=True)
    asked = Asked(handle)
    asked.wake.start()
    await handle.asked.wait()

    handle.holds, handle.refuses = False, UNAVAILABLE
    await asked.end()

    assert asked.unavailable == 1
    assert handle.asking == 0


@pytest.mark.parametrize("oddity", [BackPressureError(3, 2), RuntimeError("odd"), TimeoutError("Ray's own")])
async def test_an_oddity_is_logged_and_the_question_put_again(
    oddity: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wake, "_PAUSE_S", 0.0)
    handle = StubHandle(refuses=oddity, on_choose=lambda: setattr(asked, "needed", False))
    asked = Asked(handle)
    with caplog.at_level(logging.WARNING, "ray.serve"):
        asked.wake.start()
        await handle.asked.wait()
        handle.refuses = None
        await asked.end()

    assert handle.chosen == 2
    assert [record.levelname for record in caplog.records] == (
        ["WARNING"] if isinstance(oddity, BackPressureError) else ["ERROR"]
    )


async def test_a_replica_that_nobody_here_has_heard_of_is_not_asked_for_in_a_frenzy() -> None:
    handle = StubHandle()
    asked = Asked(handle)

    asked.wake.start()
    await handle.asked.wait()
    for _ in range(20):
        await asyncio.sleep(0)

    assert handle.chosen == 1
    asked.wake.stop()
