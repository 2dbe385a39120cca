import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from loadtests.compare import Comparison, Metric, compare
from loadtests.record import Run
from loadtests.summary import summarize
from tests.loadtests import samples
from tests.loadtests.samples import record


def named(comparison: Comparison, name: str) -> Metric:
    (metric,) = (one for one in comparison.metrics if one.name == name)
    return metric


def words(comparison: Comparison) -> Counter[str]:
    """Of the metrics that have an interval."""
    return Counter(one.word for one in comparison.metrics if one.low is not None)


def test_a_run_does_not_differ_from_itself() -> None:
    told = compare([samples.steady()], [samples.steady()])

    assert set(words(told)) == {"within the noise"}
    assert all(one.difference == 0 for one in told.metrics)
    assert told.words.startswith("Nothing is known to differ")


def test_equal_servers_are_within_the_noise_for_nine_of_ten_figures() -> None:
    """Over 60 pairs it is 95 % of them, and 92 % of those of the shorter steady part of cold bursts."""
    told: Counter[str] = Counter()
    for seed in range(10):
        told += words(compare([samples.steady(100 + seed)], [samples.steady(500 + seed)]))

    assert told.total() > 85
    assert told["within the noise"] / told.total() >= 0.9


def test_a_fifth_slower_is_worse_and_faster_is_better() -> None:
    slow, fast = samples.steady(2, slower=1.2), samples.steady(1)
    slower, faster = compare([fast], [slow]), compare([slow], [fast])

    for name in ("TTFT P50", "ITL P50", "ITL P95", "ITL P99", "end to end P50"):
        assert named(slower, name).word == "worse"
        assert named(faster, name).word == "better"
    assert named(slower, "ITL P50").relative == pytest.approx(0.2, abs=0.07)
    assert "B is worse in" in slower.words


def test_several_runs_per_side_show_a_slower_server() -> None:
    a = [samples.steady(seed) for seed in (1, 2, 3)]
    b = [samples.steady(seed, slower=1.2) for seed in (4, 5, 6)]

    told = compare(a, b)

    assert named(told, "ITL P50").word == named(told, "ITL P95").word == "worse"
    assert named(told, "GPU-seconds").low == named(told, "GPU-seconds").high == 0.0
    assert any("spread of the runs" in note for note in told.notes)


def test_runs_that_differ_among_themselves_make_a_difference_noise() -> None:
    a = [samples.steady(seed, slower=slower) for seed, slower in ((1, 0.8), (2, 1.2))]
    b = [samples.steady(seed, slower=slower) for seed, slower in ((3, 0.9), (4, 1.3))]

    assert set(words(compare(a, b))) == {"within the noise"}
    assert named(compare(a[:1], b[:1]), "ITL P50").word == "worse"


def test_one_cold_start_per_side_gives_no_noise() -> None:
    told = compare([samples.cold_burst(1)], [samples.cold_burst(2, slower=1.2)])

    for name in ("cold wait P50", "cold wait max", "TTFT P99", "GPU-seconds", "cost"):
        metric = named(told, name)
        assert (metric.word, metric.low) == ("no noise known", None)
        assert metric.why
    assert (named(told, "cold wait P50").difference or 0) > 3
    assert named(told, "warm TTFT P50").word == "worse"
    assert any("repeat the runs" in note for note in told.notes)


def test_figures_of_one_side_alone_are_not_comparable() -> None:
    told = compare([samples.steady()], [samples.empty()])

    itl, ttft = named(told, "ITL P50"), named(told, "TTFT P50")
    assert (itl.word, itl.b, itl.why) == ("not comparable", None, "B has none")
    assert (ttft.b, ttft.difference, ttft.relative) == (float("inf"), float("inf"), None)
    assert named(compare([samples.empty()], [samples.empty()]), "TTFT P50").word == "not comparable"


def caching(run: Run, share: float | None) -> Run:
    """With so much of each prompt of 100 to 120 tokens in a prefix cache; None: the server does not tell."""
    records = [
        replace(one, prompt_tokens=tokens, cached_tokens=None if share is None else round(share * tokens))
        for tokens, one in zip(itertools.cycle(range(100, 121)), run.records, strict=False)
    ]
    return replace(run, records=tuple(records))


def test_more_prompt_tokens_found_in_caches_are_better() -> None:
    told = compare([caching(samples.steady(1), 0.5)], [caching(samples.steady(2), 0.75)])

    cached = named(told, "cached prompts")
    assert (cached.word, cached.unit) == ("better", "share")
    assert (cached.a, cached.b) == (pytest.approx(0.5, abs=0.01), pytest.approx(0.75, abs=0.01))
    one_side = named(
        compare([caching(samples.steady(1), None)], [caching(samples.steady(2), 0.75)]), "cached prompts"
    )
    assert (one_side.word, one_side.a) == ("not comparable", None)


def failing(run: Run, every: int) -> Run:
    """With each so-manieth request in error before its first piece."""
    records = [
        replace(one, outcome="failed", pieces_s=(), output_tokens=None) if at % every == 0 else one
        for at, one in enumerate(run.records)
    ]
    return replace(run, records=tuple(records))


def test_many_that_never_come_are_worse_and_nothing_is_nan() -> None:
    told = compare([samples.steady(1)], [failing(samples.steady(2), 8)])

    for metric in told.metrics:
        for value in (metric.a, metric.b, metric.difference, metric.low, metric.high):
            assert value is None or value == value
    assert named(told, "error rate").word == "worse"
    assert named(told, "TTFT P95").b == float("inf")
    assert named(told, "TTFT P95").word == "worse"


def test_more_tokens_a_second_are_better() -> None:
    def closed(seed: int, every_s: float) -> Run:
        of = samples.scenario(arrivals=[], closed={"streams": 1, "for_s": 200})
        records = [
            record(at, at * every_s, [at * every_s + 0.1 * piece for piece in range(1, 6 + (at * seed) % 3)])
            for at in range(200)
        ]
        return samples.run(of, records)

    told = compare([closed(5, 1.3)], [closed(7, 1.0)])

    assert named(told, "output tokens").higher_is_better
    assert named(told, "output tokens").word == "better"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"url": "http://other:8000"}, "URL is http://127.0.0.1:8000 on A and http://other:8000 on B"),
        ({"machine": {"cpu": "64 cores"}}, "cpu is 2 cores, x86_64 on A and 64 cores on B"),
        ({"versions": {"vllm": "0.40.0"}}, "vllm is 0.32.0 on A and 0.40.0 on B"),
    ],
)
def test_other_differences_are_noted(changed: dict[str, Any], told: str) -> None:
    run = samples.steady()

    assert any(told in note for note in compare([run], [replace(run, **changed)]).notes)


def test_other_seeds_and_scenarios_are_noted() -> None:
    seeds = compare([samples.steady(1)], [samples.steady(2)]).notes
    scenarios = compare([samples.steady(1)], [samples.cold_burst(1)]).notes

    assert any("seed is 1 on A and 2 on B" in note for note in seeds)
    assert not any("scenarios" in note for note in seeds)
    assert any("differ in arrivals" in note for note in scenarios)
    assert any("different arrivals" in note for note in scenarios)


def test_runs_that_were_asked_different_things_cannot_be_trusted_to_compare() -> None:
    told = compare([samples.steady()], [samples.cold_burst()])

    assert told.invalid[0].startswith("the runs were asked different things: they differ in arrivals")
    assert told.words.startswith("These numbers cannot be trusted")


def test_a_run_on_both_sides_is_noted() -> None:
    a, b = samples.steady(1), replace(samples.steady(2), began=samples.BEGAN + 600)

    assert "1 run of B is on A too." in compare([a], [b, a]).notes
    assert not any("on A too" in note for note in compare([a], [b]).notes)


def test_the_rate_is_that_of_the_summary() -> None:
    run = samples.cold_burst()

    assert named(compare([run], [run]), "output tokens").a == pytest.approx(
        summarize(run).rates.output_tokens_per_s
    )


def test_an_invalid_run_is_compared_and_said_not_to_be_trusted() -> None:
    told = compare([samples.cold_burst()], [replace(samples.cold_burst(), interrupted="Ctrl-C")])

    assert told.invalid == ("run 1 of B is invalid: it ended early: Ctrl-C",)
    assert told.words.startswith("These numbers cannot be trusted")
    assert len(told.metrics) > 10


def test_a_side_needs_a_run() -> None:
    with pytest.raises(ValueError, match="side B has 0 runs"):
        compare([samples.steady()], [])
