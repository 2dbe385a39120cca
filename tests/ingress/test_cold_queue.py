"""The queue of a cold model: its measures, and the request that it refuses when it is full."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.settings.caller import Lane
from tests.ingress.cold_model import ColdModel, of_lane


async def test_the_queue_can_be_measured() -> None:
    model = ColdModel()

    def measured() -> tuple[int, int, list[float]]:
        return len(model.queue), model.queue.body_bytes(), model.queue.waits_s()

    await model.ask("s1", asked=of_lane(body=b"1234567"))
    model.now += 7.0
    await model.ask("r1", retry=True)
    model.now += 3.0

    assert measured() == (2, 407, [3.0, 10.0])
    await model.leave("s1")
    assert measured() == (1, 400, [3.0])
    await model.leave("r1")
    assert measured() == (0, 0, [])


@pytest.mark.parametrize("lane", ["standard", "background"])
async def test_full_queue_refuses_the_newest_of_the_key_with_the_most(lane: Lane) -> None:
    model = ColdModel(max_held_requests=6)
    other_lane: Lane = "background" if lane == "standard" else "standard"
    await model.ask("x1 x2 x3 x4 x5 x6", other_lane)  # which has a bound of its own
    await model.ask("f1 f2 f3 f4 f5 f6", lane)
    await model.ask("o1 o2 o3 o4", lane)

    refused = [name for name, task in model.tasks.items() if task.done()]
    assert refused == ["f4", "f5", "f6", "o4"]
    assert {(model.error_of(name).status, model.error_of(name).code) for name in refused} == {
        (429, "queue_full")
    }


@given(st.lists(st.sampled_from("aaaaabbc"), min_size=1, max_size=60), st.integers(0, 12))
async def test_full_queue_keeps_keys_to_equal_shares(arrivals: list[str], bound: int) -> None:
    model = ColdModel(max_held_requests=bound)
    await model.ask(" ".join(f"{key}{number}" for number, key in enumerate(arrivals)))

    asked, queued = Counter(arrivals), Counter(each.request.caller.key for each in model.queue.requests())
    assert queued.total() == min(len(arrivals), bound)
    for key, count in asked.items():
        assert queued[key] >= min(count, bound // len(asked) - 1)
    assert sum(task.done() for task in model.tasks.values()) == max(0, len(arrivals) - bound)
    for name in model.tasks:
        await model.leave(name)
    assert len(model.queue) == 0
