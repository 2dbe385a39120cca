import random
from typing import Any

import pytest
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.stats import IterationStats

from serve_app.engine.milestones import Milestones
from tests.engine.stub_core import StubCore

ARRIVED = 5000.0


class Watched:
    """A core whose milestones are noted in every step, as a report does it."""

    def __init__(self, most_a_step: int = 1) -> None:
        self.core = StubCore()
        self.milestones = Milestones(self.core.requests, most_a_step)
        self.at = 50.0

    def add(self, *names: str) -> None:
        for name in names:
            self.core.add(name, queued=self.at, arrived=ARRIVED)
            self.core.schedule(name, self.at)

    def step(self, *names: str, wall: float = ARRIVED, **how: Any) -> list[float]:
        """A step with a token for each of `names`, which vLLM sees at `wall`."""
        self.at += 0.01
        iteration = self.core.step(self.at, *names, **how)
        iteration.iteration_timestamp = wall
        return self.milestones.note(iteration).hundred_tokens_s

    def steps(self, count: int, *names: str, **how: Any) -> None:
        for _ in range(count):
            assert self.step(*names, **how) == []


def test_the_time_to_the_hundredth_token_is_seen_in_its_step_and_once() -> None:
    engine = Watched()
    engine.add("a")

    engine.steps(99, "a", wall=ARRIVED + 1.0)

    assert engine.step("a", wall=ARRIVED + 2.5) == [2.5]
    engine.steps(300, "a")


def test_an_answer_that_ends_with_its_hundredth_token_counts() -> None:
    engine = Watched()
    engine.add("a")
    engine.steps(99, "a")

    assert engine.step("a", finished=("a",), wall=ARRIVED + 3.0) == [3.0]


def test_an_answer_of_fewer_tokens_does_not_count() -> None:
    engine = Watched()
    engine.add("a", "b")
    engine.steps(98, "a", "b")

    engine.steps(1, "a", "b", finished=("a",))

    assert engine.step("b", wall=ARRIVED + 2.0) == [2.0]


def test_steps_without_a_token_for_it_put_a_request_off() -> None:
    """It is preempted, or the budget of a step's tokens goes to others."""
    engine = Watched()
    engine.add("a", "b")
    engine.steps(40, "a", "b")
    engine.steps(30, "b")
    engine.steps(29, "a", "b")

    assert engine.step("a", "b", wall=ARRIVED + 2.0) == [2.0]  # the hundredth of b
    engine.steps(29, "a")
    assert engine.step("a", wall=ARRIVED + 9.0) == [9.0]


def test_a_step_of_several_tokens_counts_where_it_crosses_the_hundredth() -> None:
    engine = Watched(most_a_step=8)
    engine.add("a")
    engine.steps(1, "a")
    engine.steps(11, "a", tokens=8)  # 89
    engine.steps(4, "a", tokens=2)  # 97

    assert engine.step("a", tokens=7, wall=ARRIVED + 2.0) == [2.0]
    engine.steps(20, "a", tokens=8)


def test_a_first_step_of_more_than_a_hundred_tokens_counts() -> None:
    engine = Watched(most_a_step=128)
    engine.add("a")

    assert engine.step("a", tokens=128, wall=ARRIVED + 1.0) == [1.0]


def test_a_request_that_takes_a_lost_ones_name_is_followed_by_itself() -> None:
    engine = Watched()
    engine.add("a")
    engine.steps(50, "a")
    del engine.core.requests["a"]  # aborted
    engine.add("a")
    engine.steps(99, "a")

    assert engine.step("a", wall=ARRIVED + 4.0) == [4.0]


@pytest.mark.parametrize("most_a_step", [1, 3, 16])
def test_whatever_steps_bring_each_is_seen_when_it_crosses_and_never_again(most_a_step: int) -> None:
    rng = random.Random(most_a_step)
    engine = Watched(most_a_step)
    names = [f"r{n}" for n in range(40)]
    engine.add(*names)
    for _ in range(1500):
        names = list(engine.core.requests)
        chosen = [name for name in names if rng.random() < 0.8]
        before = {name: engine.core.requests[name].stats.num_generation_tokens for name in chosen}
        tokens = rng.randint(1, most_a_step)
        ending = [name for name in chosen if rng.random() < 0.003]
        crossing = sum(count < 100 <= count + tokens for count in before.values())

        assert len(engine.step(*chosen, tokens=tokens, finished=ending)) == crossing


def test_requests_that_are_gone_are_forgotten() -> None:
    engine = Watched()
    for number in range(500):
        engine.add(f"r{number}")
        engine.step(f"r{number}")
        del engine.core.requests[f"r{number}"]

    assert sum(map(len, engine.milestones._due)) <= 100


def test_a_request_nobody_told_of_is_not_looked_for() -> None:
    """One that began in the warm-up."""
    core = StubCore()
    core.add("a")
    core.step(0.1, "a")
    milestones = Milestones(core.requests)

    assert [milestones.note(core.step(0.2, "a")) for _ in range(150)] == [([], [])] * 150
    assert milestones.note(IterationStats()) == ([], [])


def test_a_first_token_is_split_into_queue_and_prefill_as_soon_as_it_is_there() -> None:
    core = StubCore()
    milestones = Milestones(core.requests)
    core.add("a", queued=50.0)
    core.schedule("a", 50.4)

    (seen,) = milestones.note(core.step(50.6, "a")).first_tokens

    assert (seen.queue_s, seen.prefill_s) == (pytest.approx(0.4), pytest.approx(0.2))


def test_a_request_is_counted_once_however_many_tokens_follow() -> None:
    core = StubCore()
    milestones = Milestones(core.requests)
    for name in ("a", "b"):
        core.add(name, queued=50.0)
        core.schedule(name, 50.1)
    assert len(milestones.note(core.step(50.2, "a")).first_tokens) == 1
    # The first of b, while a goes on.
    assert len(milestones.note(core.step(50.3, "a", "b")).first_tokens) == 1
    assert milestones.note(core.step(50.4, "a", "b", finished=("a", "b"))) == ([], [])


def test_a_request_that_ends_with_its_first_token_counts_too() -> None:
    core = StubCore()
    milestones = Milestones(core.requests)
    for name in ("a", "b"):
        core.add(name, queued=50.0)
        core.schedule(name, 50.1)

    assert len(milestones.note(core.step(50.2, "a", "b", finished=("a",))).first_tokens) == 2


def test_the_end_of_a_request_is_no_first_token_where_another_one_has_its_own() -> None:
    core = StubCore()
    milestones = Milestones(core.requests)
    for name, at in (("a", 50.0), ("b", 50.25)):
        core.add(name, queued=at)
        core.schedule(name, at)
    milestones.note(core.step(50.2, "a"))

    (seen,) = milestones.note(core.step(50.3, "a", "b", finished=("a",))).first_tokens

    assert seen.prefill_s == pytest.approx(0.05)


def test_a_request_the_core_refused_says_nothing_of_queues() -> None:
    core = StubCore()
    milestones = Milestones(core.requests)
    core.add("a", queued=50_000.0)  # never scheduled

    step = core.step(50_000.1, "a", finished=("a",), tokens=0, reason=FinishReason.ERROR)

    assert milestones.note(step) == ([], [])


def test_a_step_without_first_tokens_is_not_looked_through() -> None:
    core = StubCore()
    core.add("a")
    core.step(50.2, "a")
    milestones = Milestones(core.requests)

    assert milestones.note(core.step(50.3, "a")) == ([], [])
