"""Fair shares on a simulated engine, which runs the waiting sequences with the smallest priorities."""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.engine.sequence_lanes import Charge, FairShare, lane_of, used_tokens
from serve_app.settings.caller import LANES, Caller, Lane
from tests.engine.simulated_core import BLOCK, SimulatedCore

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])


ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.floats(0.01, 100.0),
        st.integers(1, 1000),
        st.integers(0, 1000),
        st.booleans(),
    ),
    max_size=60,
)


@dataclass
class Running:
    """A sequence in the batch."""

    caller: Caller
    charge: Charge
    prompt: int
    output: int
    generated: int = 0


class SimulatedEngine:
    """Runs `slots` sequences at a time: a prompt in one step, then a token per step."""

    def __init__(self, slots: int) -> None:
        self.shares = FairShare()
        self.served: Counter[str] = Counter()
        self.started: list[str] = []
        self._slots = slots
        self._number = itertools.count()
        self._waiting: list[tuple[int, int, Running]] = []
        self._running: list[Running] = []

    def send(self, caller: Caller, prompt: int = 50, output: int = 20) -> None:
        """A sequence of `prompt` and `output` tokens arrives."""
        charge = self.shares.charge(caller, prompt, 4096)
        sequence = Running(caller, charge, prompt, output)
        heapq.heappush(self._waiting, (charge.priority, next(self._number), sequence))

    def step(self) -> list[Caller]:
        """Run one step. Returns the callers whose sequences ended."""
        while self._waiting and len(self._running) < self._slots:
            sequence = heapq.heappop(self._waiting)[2]
            self.started.append(sequence.caller.key)
            self.served[sequence.caller.key] += sequence.prompt
            self._running.append(sequence)
        for sequence in self._running:
            sequence.generated += 1
            self.served[sequence.caller.key] += 1
        ended = [one for one in self._running if one.generated >= one.output]
        self._running = [one for one in self._running if one.generated < one.output]
        for one in ended:
            one.charge.settle(one.prompt, one.generated)
        return [one.caller for one in ended]

    def overload(self, *callers: Caller, steps: int, size: Callable[[str], tuple[int, int]]) -> None:
        """Each caller has 20 sequences waiting or running, always."""
        for caller in callers * 20:
            self.send(caller, *size(caller.key))
        for _ in range(steps):
            for caller in self.step():
                self.send(caller, *size(caller.key))


def sizes(seed: int) -> Callable[[str], tuple[int, int]]:
    """Keys with even names send short prompts and long answers, the others long prompts and short answers."""
    rng = random.Random(seed)
    return lambda key: (
        (rng.randint(5, 50), rng.randint(50, 200))
        if ord(key[-1]) % 2
        else (rng.randint(50, 400), rng.randint(5, 20))
    )


@pytest.mark.parametrize("seed", range(3))
def test_weights_1_to_3_get_tokens_1_to_3(seed: int) -> None:
    engine = SimulatedEngine(8)

    engine.overload(Caller("a"), Caller("b", weight=3.0), steps=8000, size=sizes(seed))

    assert engine.served["b"] / engine.served["a"] == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_ten_equal_keys_get_equal_tokens(seed: int) -> None:
    engine = SimulatedEngine(8)

    engine.overload(*(Caller(str(number)) for number in range(10)), steps=8000, size=sizes(seed))

    tokens = list(engine.served.values())
    assert sum(tokens) ** 2 / (len(tokens) * sum(one * one for one in tokens)) >= 0.98  # Jain's index


@given(flood=st.integers(1, 200), steps=st.integers(0, 300), weight=st.floats(0.1, 10.0))
def test_key_without_sequences_waits_for_one_free_slot(flood: int, steps: int, weight: float) -> None:
    engine = SimulatedEngine(4)
    for _ in range(flood):
        engine.send(Caller("flood"))
    for _ in range(steps):
        engine.step()
    engine.send(Caller("quiet", weight=weight))
    before = len(engine.started)

    while "quiet" not in engine.started:
        engine.step()

    assert engine.started.index("quiet") - before < 4  # the slots that become free in the same step


def test_key_that_comes_back_has_saved_no_share() -> None:
    engine = SimulatedEngine(4)
    busy, back = Caller("busy"), Caller("back")
    engine.send(back)
    engine.overload(busy, steps=2000, size=lambda _: (50, 20))
    served = engine.served.copy()

    engine.overload(back, steps=1000, size=lambda _: (50, 20))  # `busy` still has 20 sequences

    got = engine.served - served
    assert got["busy"] > 1000
    assert got["back"] < 4 * 1000 * 70 / 20


@given(ARRIVALS)
def test_lane_decides_before_any_share(arrivals: list[tuple[str, float, int, int, bool]]) -> None:
    shares = FairShare()
    priorities: dict[Lane, list[int]] = {lane: [] for lane in LANES}
    for key, weight, prompt, generated, ends in arrivals:
        for lane in LANES:
            charge = shares.charge(Caller(key, lane, weight), prompt, 1000)
            priorities[lane].append(charge.priority)
            if ends:
                charge.settle(prompt, generated)

    for lane in LANES:
        assert {lane_of(priority) for priority in priorities[lane]} <= {lane}
    if arrivals:
        assert max(priorities["interactive"]) < min(priorities["standard"])
        assert max(priorities["standard"]) < min(priorities["background"])


@given(ARRIVALS)
def test_older_sequence_of_a_key_stays_first(arrivals: list[tuple[str, float, int, int, bool]]) -> None:
    shares = FairShare()
    waits = shares.charge(Caller("other"), 1, 1)  # keeps the lane busy
    newest: dict[str, int] = {}
    for key, weight, prompt, generated, ends in arrivals:
        charge = shares.charge(Caller(key, weight=weight), prompt, 1000)
        assert charge.priority >= newest.get(key, waits.priority)
        newest[key] = charge.priority
        if ends:
            charge.settle(prompt, generated)


def test_priorities_stay_64_bit_integers() -> None:
    shares = FairShare()
    shares.charge(Caller("waits", "background"), 1, 1)

    for _ in range(100):
        priority = shares.charge(Caller("a", "background", 1e-12), 1 << 30, 1).priority

    assert lane_of(priority) == "background"
    assert priority < 1 << 63


def test_tags_begin_anew_when_a_lane_was_idle() -> None:
    shares = FairShare()
    first = shares.charge(Caller("a"), 500, 10)
    second = shares.charge(Caller("a"), 500, 10)
    first.settle(500, 10)
    second.settle(500, 10)

    assert second.priority > first.priority
    assert shares.charge(Caller("a"), 500, 10).priority == first.priority


def test_sequence_that_never_ran_costs_nothing() -> None:
    shares = FairShare()
    shares.charge(Caller("waits"), 1, 1)
    first = shares.charge(Caller("a"), 500, 10)
    first.settle(0, 0)

    assert shares.charge(Caller("a"), 500, 10).priority == first.priority


@pytest.mark.parametrize("priority", [-(1 << 63), -1, (1 << 63) - 1])
def test_foreign_priority_counts_as_the_nearest_lane(priority: int) -> None:
    assert lane_of(priority) == ("interactive" if priority < 0 else "background")


@pytest.mark.parametrize(
    ("prefilling", "stats", "used"),
    [
        (False, SimpleNamespace(num_generation_tokens=7), (60, 7)),
        (True, SimpleNamespace(num_generation_tokens=0), (0, 0)),
        (False, None, (0, 0)),
    ],
)
def test_cached_tokens_and_sequences_that_never_ran_are_free(
    prefilling: bool, stats: object, used: tuple[int, int]
) -> None:
    state = SimpleNamespace(is_prefilling=prefilling, prompt_len=100, num_cached_tokens=40, stats=stats)

    assert used_tokens(state) == used


@BOTH
@pytest.mark.parametrize("lane", ["interactive", "standard"])
def test_key_below_its_share_takes_a_place_of_a_greedy_key(asynchronous: bool, lane: Lane) -> None:
    core = SimulatedCore(asynchronous=asynchronous, max_num_seqs=8)
    for number in range(64):
        core.send(f"greedy-{number}", lane, key="greedy")
    core.steps(5)
    core.send("modest", lane, prompt=30, key="modest")

    assert core.step()["modest"] == 30
    assert core.running == {"modest", *(f"greedy-{number}" for number in range(7))}


@BOTH
def test_key_below_its_share_takes_kv_blocks_of_a_greedy_key(asynchronous: bool) -> None:
    core = SimulatedCore(blocks=41, asynchronous=asynchronous, max_num_seqs=16)  # one is vLLM's null block
    for number in range(4):
        core.send(f"greedy-{number}", "standard", prompt=9 * BLOCK, key="greedy")
    core.steps(3)

    core.send("modest", "standard", prompt=8 * BLOCK, key="modest")

    assert core.step()["modest"] == 8 * BLOCK
    assert core.running == {"modest", "greedy-0", "greedy-1", "greedy-2"}


@BOTH
def test_keys_with_equal_shares_take_no_places_from_each_other(asynchronous: bool) -> None:
    core = SimulatedCore(asynchronous=asynchronous, max_num_seqs=8)
    prefills: Counter[str] = Counter()
    unfinished: dict[str, str] = {}
    for at in range(700):
        for key in ("a", "b", "c"):
            while Counter(unfinished.values())[key] < 6:
                name = f"{key}-{at}-{len(unfinished)}"
                core.send(name, "standard", output=10 + at % 40, key=key)
                unfinished[name] = key
        prefills.update(name for name, tokens in core.step().items() if tokens > 1)
        unfinished = {name: key for name, key in unfinished.items() if name in core.scheduler.requests}

    assert len(prefills) > 100
    assert max(prefills.values()) == 1
