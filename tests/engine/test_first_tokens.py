from __future__ import annotations

import pytest
from vllm.v1.engine import FinishReason

from serve_app.engine.first_tokens import FirstTokens
from tests.engine.stub_core import StubCore

NOW = 1000.0


def counted(first: FirstTokens) -> int:
    assert first.queue.count(NOW) == first.prefill.count(NOW)
    return first.queue.count(NOW)


def test_a_first_token_is_split_into_queue_and_prefill_as_soon_as_it_is_there() -> None:
    core = StubCore()
    first = FirstTokens(core.requests, 30.0)
    core.add("a", queued=50.0)
    core.schedule("a", 50.4)

    (seen,) = first.note(core.step(50.6, "a"), NOW)

    assert (seen.queue_s, seen.prefill_s) == (pytest.approx(0.4), pytest.approx(0.2))
    assert counted(first) == 1
    # A bucket of the window is 5 % wide.
    assert first.queue.percentile(99, NOW) == pytest.approx(0.4, rel=0.05)
    assert first.prefill.percentile(99, NOW) == pytest.approx(0.2, rel=0.05)


def test_a_request_is_counted_once_however_many_tokens_follow() -> None:
    core = StubCore()
    first = FirstTokens(core.requests, 30.0)
    for name in ("a", "b"):
        core.add(name, queued=50.0)
        core.schedule(name, 50.1)
    first.note(core.step(50.2, "a"), NOW)
    first.note(core.step(50.3, "a", "b"), NOW)  # the first of b while a goes on

    assert first.note(core.step(50.4, "a", "b", finished=("a", "b")), NOW) == []
    assert counted(first) == 2


def test_a_request_that_ends_with_its_first_token_counts_too() -> None:
    core = StubCore()
    first = FirstTokens(core.requests, 30.0)
    for name in ("a", "b"):
        core.add(name, queued=50.0)
        core.schedule(name, 50.1)

    first.note(core.step(50.2, "a", "b", finished=("a",)), NOW)

    assert counted(first) == 2


def test_the_end_of_a_request_is_no_first_token_where_another_one_has_its_own() -> None:
    core = StubCore()
    first = FirstTokens(core.requests, 30.0)
    for name, at in (("a", 50.0), ("b", 50.25)):
        core.add(name, queued=at)
        core.schedule(name, at)
    first.note(core.step(50.2, "a"), NOW)

    (seen,) = first.note(core.step(50.3, "a", "b", finished=("a",)), NOW)

    assert seen.prefill_s == pytest.approx(0.05)
    assert counted(first) == 2


def test_a_request_the_core_refused_says_nothing_of_queues() -> None:
    core = StubCore()
    first = FirstTokens(core.requests, 30.0)
    core.add("a", queued=50_000.0)  # never scheduled

    step = core.step(50_000.1, "a", finished=("a",), tokens=0, reason=FinishReason.ERROR)

    assert first.note(step, NOW) == []
    assert counted(first) == 0


def test_a_step_without_first_tokens_is_not_looked_through() -> None:
    core = StubCore()
    core.add("a")
    core.step(50.2, "a")
    first = FirstTokens(core.requests, 30.0)

    assert first.note(core.step(50.3, "a"), NOW) == []
    assert counted(first) == 0


def test_who_goes_on_after_a_first_token_is_told_of_once() -> None:
    core = StubCore()
    told: list[tuple[str, object]] = []
    first = FirstTokens(core.requests, 30.0, lambda name, stats: told.append((name, stats)))
    for name in ("a", "b"):
        core.add(name, queued=50.0)
        core.schedule(name, 50.1)
    stats = core.requests["b"].stats

    first.note(core.step(50.2, "a", "b", finished=("a",)), NOW)
    core.add("c", queued=50.2)
    core.schedule("c", 50.2)
    first.note(core.step(50.3, "b", "c", finished=("c",)), NOW)

    assert told == [("b", stats)]
