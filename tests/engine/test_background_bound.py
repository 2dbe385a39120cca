"""The bound on steps, without a scheduler: any cost of tokens, any load."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.engine.background_bound import BackgroundBound
from tests.engine.simulated_core import SimulatedCore, flood

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])


class Engine:
    """Steps that take `base_s`, and `token_s` for each token of `background`."""

    def __init__(self, step_s: float, base_s: float, token_s: float) -> None:
        self.now = 0.0
        self.base_s, self.token_s = base_s, token_s
        self.bound = BackgroundBound(lambda: self.now)
        self.bound.step_s = step_s

    def step(self, wanted: int = 2048) -> tuple[int, float]:
        """A shared step. Returns the tokens of `background`, and its seconds."""
        limit = self.bound.begin_step(True)
        used = wanted if limit is None else min(wanted, limit)
        if limit is not None:
            self.bound.end_step(used)
        took = self.base_s + used * self.token_s
        self.now += took
        return used, took


@settings(max_examples=50, deadline=None)
@given(
    st.floats(0.002, 0.2),
    st.floats(0.1, 0.95),
    st.integers(1, 1000),
    st.integers(0, 500),
    st.integers(1, 500),
)
def test_limit_ends_at_the_bound(step_s: float, base: float, room: int, few: int, more: int) -> None:
    engine = Engine(step_s, base * step_s, (1 - base) * step_s / (room + 0.5))
    for wanted in (few, more):  # the load changes meanwhile
        for _ in range(50):
            engine.step(wanted)

    for _ in range(300):
        engine.step()
    used = [engine.step()[0] for _ in range(100)]

    assert max(used) <= room * (1 + 1 / 16) + 1
    assert sum(used) / 100 >= 0.7 * room
    assert min(used) >= 1


@given(st.integers(1, 100))
def test_limit_grows_to_about_twice_the_tokens_in_use(wanted: int) -> None:
    engine = Engine(0.02, 0.01, 1e-6)
    for _ in range(400):
        engine.step(wanted)

    assert 2 * wanted < engine.step()[0] <= 2.2 * wanted + 3


def test_interval_outside_of_shared_steps_does_not_count() -> None:
    engine = Engine(0.02, 0.01, 1e-4)
    for _ in range(200):
        engine.step()
    before, _ = engine.step()

    engine.now += 10.0
    assert engine.bound.begin_step(False) is None
    engine.now += 10.0

    assert engine.step()[0] == before


def test_zero_is_no_bound() -> None:
    assert Engine(0.0, 0.01, 1e-4).step() == (2048, 0.01 + 2048e-4)


BOUND_S = 0.020


def bounded(asynchronous: bool = False, seconds: float = BOUND_S, **model: Any) -> SimulatedCore:
    """An engine whose steps take 11 ms, and 120 us for each token."""
    core = SimulatedCore(asynchronous=asynchronous, blocks=4000, max_num_seqs=32, **model)
    core.lane_knobs["background"] = seconds
    core.step_s = lambda tokens: 0.011 + 120e-6 * sum(tokens.values())
    return core


def mixed_steps(core: SimulatedCore, count: int) -> tuple[list[float], int]:
    """Run steps beside the sequence `chat`. Returns their seconds and the tokens of `background`."""
    steps = [core.step() for _ in range(count)]
    assert all(step["chat"] == 1 for step in steps)
    return [core.step_s(step) for step in steps], sum(sum(step.values()) - 1 for step in steps)


def start_chat(core: SimulatedCore) -> None:
    core.send("chat", "interactive")
    assert core.step() == {"chat": 20}


@BOTH
@pytest.mark.parametrize("prompt", [20, 1500])
def test_steps_with_background_beside_others_keep_the_bound(asynchronous: bool, prompt: int) -> None:
    core = bounded(asynchronous)
    flood(core, 50, prompt=prompt)
    core.steps(3)
    start_chat(core)

    took, _ = mixed_steps(core, 100)
    assert max(took) <= BOUND_S * 1.03  # the limit rises from a token
    took, tokens = mixed_steps(core, 100)

    assert max(took) <= BOUND_S * 1.03
    # A step has room for 74 tokens of background, but short prompts soon decode in 31 places.
    assert tokens / 100 >= (0.8 * 74 if prompt > 1000 else 30)


@BOTH
def test_longer_steps_lower_the_limit(asynchronous: bool) -> None:
    core = bounded(asynchronous)
    flood(core, 30, prompt=1500)
    core.step()
    start_chat(core)
    mixed_steps(core, 100)
    core.step_s = lambda tokens: 0.015 + 240e-6 * sum(tokens.values())  # room for 19 tokens of background

    mixed_steps(core, 12)
    took, tokens = mixed_steps(core, 50)

    assert max(took) <= BOUND_S * 1.03
    assert tokens / 50 >= 0.7 * 19


@pytest.mark.parametrize("drafts", [0, 3])
def test_background_advances_even_if_others_take_longer_than_the_bound(drafts: int) -> None:
    core = bounded(seconds=0.001)
    core.scheduler.num_spec_tokens = drafts
    flood(core, 8)
    core.steps(3)
    start_chat(core)

    _, tokens = mixed_steps(core, 50)

    assert tokens == 50 * (1 + drafts)  # one decode in each step, with its drafts


def test_background_that_needs_more_than_the_limit_advances_at_times() -> None:
    core = bounded(seconds=0.001)
    core.scheduler.scheduler_config.enable_chunked_prefill = False
    start_chat(core)
    core.send("whole", "background", prompt=100)

    steps = [core.step() for _ in range(32)]

    assert [step["whole"] for step in steps if "whole" in step] == [100]
    assert all(step["chat"] == 1 for step in steps)


@BOTH
def test_flood_alone_has_no_limit(asynchronous: bool) -> None:
    core = bounded(asynchronous, max_num_batched_tokens=512)
    start_chat(core)
    flood(core, 20, prompt=1500)
    mixed_steps(core, 10)

    core.abort(["chat"])

    assert sum(core.step().values()) == 512
    core.send("long", "interactive", prompt=1000)
    assert core.step() == {"long": 512}


def test_no_bound_gives_background_all_tokens_of_a_step() -> None:
    core = bounded(seconds=0.0, max_num_batched_tokens=512)
    start_chat(core)
    flood(core, 20, prompt=1500)

    assert sum(core.step().values()) == 512
