"""The bound on steps, without a scheduler: any cost of tokens, any load."""

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.engine.background_bound import BackgroundBound


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
