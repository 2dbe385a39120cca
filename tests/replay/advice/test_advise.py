import itertools

import numpy as np
import pytest

from replay.advice.advise import Compared, Part, Verdict, advise, halves, judge
from replay.advice.score import Outcome, Score
from serve_app.settings.knobs import Knobs
from traces import ArrayTrace, TraceError

KNOBS = Knobs(min_replicas=0, max_replicas=8, headroom=1.0)


def steady(seconds: float = 1200.0, rps: float = 1.0) -> ArrayTrace:
    at = np.arange(0.0, seconds + 1.0, 1.0 / rps)
    return ArrayTrace("steady", at, np.full(len(at), 200), np.full(len(at), 20))


def made_up(part: Part, knobs: Knobs, seed: int) -> Outcome:
    """The second half is harder, and headroom costs."""
    harder = 0.002 if part.start_s else 0.0
    attainment = 1.0 - harder - (0.02 if knobs.headroom < 0.5 else 0.0)
    return Outcome(1000.0 + 100.0 * knobs.headroom + seed, attainment, 1.0, 2.0, 4.0, 8.0, 0.0)


def score(*pairs: tuple[float, float]) -> Score:
    return Score(tuple(Outcome(cost, attainment, 1.0, 0.0, 0.0, 8.0, 0.0) for cost, attainment in pairs))


def test_halves_have_every_request_once() -> None:
    first, second, _ = halves(steady())

    arrivals = [np.concatenate([c.arrival_s for c in part.chunks()]) for part in (first, second)]
    assert [len(part) for part in arrivals] == [600, 601]
    assert [part[0] for part in arrivals] == [0.0, 0.0]
    assert second.name == "steady, second half"


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        (steady(1100.0), "lasts 1100 s"),
        (
            ArrayTrace("late", [0.0, *np.linspace(1500.0, 2000.0, 500)], [1] * 501, [1] * 501),
            "first half has 1",
        ),
    ],
)
def test_short_trace_is_refused(trace: ArrayTrace, told: str) -> None:
    with pytest.raises(TraceError, match=told):
        halves(trace)


def test_advice_is_tuned_on_the_harder_half() -> None:
    advice = advise(steady(), KNOBS, names=["headroom"], replay_part=made_up)

    assert advice.verdict is Verdict.CHANGE
    assert advice.changes == {"headroom": 0.5}
    assert advice.tuned_on.label == "second half"
    assert advice.checked_on.label == "first half"
    assert advice.held_out.advised.gpu_seconds == pytest.approx(1051.0)
    assert advice.held_out.current.gpu_seconds == pytest.approx(1101.0)
    assert advice.exhausted


def test_the_search_leaves_time_for_the_check() -> None:
    now = itertools.count()
    clock = [0.0]

    def slow(part: Part, knobs: Knobs, seed: int) -> Outcome:
        clock[0] += 10.0
        next(now)
        return made_up(part, knobs, seed)

    advice = advise(
        steady(), KNOBS, names=["headroom"], budget_s=150.0, replay_part=slow, clock=lambda: clock[0]
    )

    assert not advice.exhausted
    assert advice.spent_s <= 150.0
    assert next(now) <= 15


GOOD, CHEAP = score((100.0, 1.0), (100.0, 1.0)), score((80.0, 0.995), (81.0, 0.995))
MISSES = score((80.0, 0.98), (81.0, 0.995))
UNSURE = score((80.0, 1.0), (110.0, 1.0))


@pytest.mark.parametrize(
    ("tuned", "held_out", "verdict"),
    [
        (Compared(GOOD, CHEAP), Compared(GOOD, CHEAP), Verdict.CHANGE),
        (Compared(GOOD, CHEAP), Compared(GOOD, MISSES), Verdict.NOT_HELD),
        (Compared(GOOD, CHEAP), Compared(GOOD, UNSURE), Verdict.NOISE),
        (Compared(GOOD, CHEAP), Compared(CHEAP, GOOD), Verdict.NOISE),
        (Compared(MISSES, MISSES), Compared(GOOD, GOOD), Verdict.NOTHING_MEETS),
        (Compared(MISSES, GOOD), Compared(CHEAP, GOOD), Verdict.CHANGE),
    ],
)
def test_verdict_depends_on_the_held_out_half(tuned: Compared, held_out: Compared, verdict: Verdict) -> None:
    assert judge(tuned, held_out, 0.99, changed=True) is verdict


def test_a_real_replay_is_advised_on() -> None:
    # A second passes between two looks at the clock: time for a few of the twelve values.
    clock = itertools.count(0.0).__next__
    advice = advise(steady(rps=0.2), KNOBS, seeds=1, names=["headroom"], goal=0.5, budget_s=10.0, clock=clock)

    assert advice.tried > 0
    assert advice.tuned.current.gpu_seconds > 0
    assert advice.tuned.advised.gpu_seconds <= advice.tuned.current.gpu_seconds
