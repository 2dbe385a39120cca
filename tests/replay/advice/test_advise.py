import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from replay.advice.advise import Compared, Part, Verdict, advise, halves, judge
from replay.advice.score import Outcome, Score, better, within_noise
from replay.advice.search import DEFAULT, Search, Tried, changes, check_names, ladder, with_value
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError
from traces import ArrayTrace, TraceError
from traces.backlog import Backlog, WithBacklog

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
    first, second, *_ = halves(steady())

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


def test_unfinished_backlog_misses_the_goal_and_its_latency_does_not() -> None:
    done, late = (
        Outcome(100.0, 1.0, 1.0, 2.0, 4.0, 8.0, 0.0),
        Outcome(50.0, 1.0, 1.0, 2.0, 4.0, 8.0, 0.0, 7.0),
    )
    later = replace(late, gpu_seconds=40.0, late=9.0)

    assert Score((done,)).meets(0.99)
    assert not Score((done, late)).meets(0.99)
    assert better(Score((done,)), Score((late,)), 0.99)
    assert better(Score((late,)), Score((later,)), 0.99)
    assert (
        judge(
            Compared(Score((late,)), Score((late,))),
            Compared(Score((done,)), Score((done,))),
            0.99,
            changed=False,
        )
        is Verdict.NOTHING_MEETS
    )


def test_knobs_of_the_background_are_searched_only_with_such_requests() -> None:
    backlog = Backlog.parse("50%@00:05-00:10")
    searched = [
        advise(
            trace, KNOBS, names=["headroom", "background_keep_s"], backlog=backlog, replay_part=made_up
        ).names
        for trace in (steady(), WithBacklog(steady(), backlog))
    ]

    assert searched == [("headroom",), ("headroom", "background_keep_s")]


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


@pytest.mark.long
def test_a_real_replay_is_advised_on() -> None:
    # A second passes between two looks at the clock: time for a few of the twelve values.
    clock = itertools.count(0.0).__next__
    advice = advise(steady(rps=0.2), KNOBS, seeds=1, names=["headroom"], goal=0.5, budget_s=10.0, clock=clock)

    assert advice.tried > 0
    assert advice.tuned.current.gpu_seconds > 0
    assert advice.tuned.advised.gpu_seconds <= advice.tuned.current.gpu_seconds


# Not the defaults, which may change.
START = Knobs(
    min_replicas=0,
    max_replicas=32,
    headroom=1.0,
    forecast=True,
    forecast_quantile=0.9,
    downscale_delay_s=90.0,
)


def outcome(gpu_seconds: float, attainment: float) -> Outcome:
    return Outcome(gpu_seconds, attainment, attainment, 3.0, 6.0, 32.0, 0.0)


def made_up_cost(knobs: Knobs, seed: int) -> Outcome:
    """Spare replicas and a long hold buy attainment; a quantile of 0.8 is cheapest."""
    cost = 1000.0 + 100.0 * knobs.headroom + 0.5 * knobs.downscale_delay_s + 10.0 * seed
    cost += 400.0 * abs(knobs.forecast_quantile - 0.8)
    attainment = 0.97 + 0.02 * min(knobs.headroom, 1.5) + 0.0001 * knobs.downscale_delay_s
    return outcome(cost, min(attainment, 1.0))


def search(
    evaluate: Callable[[Knobs, int], Outcome] = made_up_cost,
    *,
    start: Knobs = START,
    names: Sequence[str] = DEFAULT,
    seeds: Sequence[int] = (0, 1, 2),
    goal: float = 0.99,
    time_left: Callable[[], bool] = lambda: True,
    tell: Callable[[Tried], None] = lambda _: None,
) -> Search:
    first = Score(tuple(evaluate(start, seed) for seed in seeds))
    found = Search(evaluate, start, first, tuple(names), seeds, goal, time_left, tell)
    found.run()
    return found


def test_it_finds_the_cheapest_knobs_that_meet_the_goal() -> None:
    found = search()

    assert found.best.forecast_quantile == 0.8
    assert found.best_score.meets(0.99)
    assert found.best_score.gpu_seconds < found.start_score.gpu_seconds * 0.95
    assert found.exhausted
    one_less = with_value(found.best, "headroom", max(found.best.headroom - 0.25, 0.0))
    assert one_less is not None
    assert found.best.headroom == 0.0 or made_up_cost(one_less, 0).attainment < 0.99


def test_attainment_comes_first_below_the_goal() -> None:
    found = search(start=START.model_copy(update={"headroom": 0.0, "downscale_delay_s": 15.0}))

    assert not found.start_score.meets(0.99)
    assert found.best_score.meets(0.99)
    assert found.best_score.gpu_seconds > found.start_score.gpu_seconds * 0.9


def test_a_hopeless_configuration_is_replayed_on_one_seed_only() -> None:
    asked: list[tuple[float, int]] = []

    def counted(knobs: Knobs, seed: int) -> Outcome:
        asked.append((knobs.headroom, seed))
        return outcome(1000.0 + 100.0 * knobs.headroom, 0.995 if knobs.headroom >= 1.0 else 0.9)

    found = search(counted, names=["headroom"])

    assert found.best == START
    assert [seed for headroom, seed in asked if headroom == 0.5] == [0]
    assert [seed for headroom, seed in asked if headroom == 1.5] == [0]
    assert found.dropped == found.tried > 0


def test_nothing_is_replayed_twice() -> None:
    asked: list[tuple[str, int]] = []

    def counted(knobs: Knobs, seed: int) -> Outcome:
        asked.append((knobs.model_dump_json(), seed))
        return made_up_cost(knobs, seed)

    search(counted)

    assert len(asked) == len(set(asked))


def test_search_ends_with_the_best_so_far() -> None:
    left = iter([True] * 20 + [False] * 1000)

    found = search(time_left=lambda: next(left))

    assert not found.exhausted
    assert found.best_score.meets(0.99)
    assert found.best_score.gpu_seconds <= found.start_score.gpu_seconds


def test_search_undoes_idle_changes() -> None:
    def idle(knobs: Knobs, seed: int) -> Outcome:
        # Headroom saves a little until the quantile saves everything.
        if knobs.forecast_quantile <= 0.8:
            return outcome(500.0, 1.0)
        return outcome(1000.0 - 50.0 * (1.0 - min(knobs.headroom, 1.0)), 1.0)

    found = search(idle, names=["headroom", "forecast_quantile"])

    assert set(changes(START, found.best)) == {"forecast_quantile"}


def test_meeting_the_goal_comes_before_cost() -> None:
    dear, cheap, short = score((100.0, 0.995)), score((90.0, 0.992)), score((50.0, 0.98))

    assert better(dear, short, 0.99)
    assert better(cheap, dear, 0.99)
    assert not better(cheap, dear, 0.99, gain=0.2)
    assert not better(short, cheap, 0.99)
    assert better(score((60.0, 0.985)), short, 0.99)
    assert better(score((40.0, 0.9795)), short, 0.99)


@pytest.mark.parametrize(
    ("new", "noise"),
    [
        ((90.0, 91.0, 92.0), False),
        ((90.0, 101.0, 92.0), True),
        ((99.0, 99.5, 95.0), True),
        ((110.0, 111.0, 112.0), False),
    ],
)
def test_a_difference_counts_where_the_seeds_agree_on_it(
    new: tuple[float, float, float], noise: bool
) -> None:
    old = score((100.0, 1.0), (100.0, 1.0), (100.0, 1.0))

    assert within_noise(score(*((cost, 1.0) for cost in new)), old) is noise


def test_a_ladder_has_the_value_in_force() -> None:
    assert ladder("downscale_delay_s", START.model_copy(update={"downscale_delay_s": None}))[:2] == (None, 15)
    assert 0.6 in ladder("headroom", START.model_copy(update={"headroom": 0.6}))
    assert list(ladder("max_replicas", START)) == sorted(ladder("max_replicas", START))


def test_a_bound_that_was_never_reached_is_not_replayed() -> None:
    asked: list[int] = []

    def small(knobs: Knobs, seed: int) -> Outcome:
        asked.append(knobs.max_replicas)
        return replace(outcome(1000.0 + 100.0 * knobs.max_replicas, 1.0), peak=min(6.0, knobs.max_replicas))

    found = search(small, names=["max_replicas"], seeds=[0])

    assert asked[0] == 32
    assert max(asked[1:]) <= 6
    assert found.best.max_replicas == 1


@pytest.mark.parametrize("names", [["ttft_target_s"], ["headrom"], []])
def test_a_name_that_is_not_searched_is_refused(names: list[str]) -> None:
    with pytest.raises(SettingsError, match="of max_replicas, headroom"):
        check_names(names)
