"""The comparison of versions: its false alarms and power by simulation, and properties of a fall back.

`docs/benchmarks/canary.md` has the figures of longer runs of `simulate`.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.canary_comparisons import REQUESTS_PER_LOOK, drawn, simulate
from serve_app.policy.canary import (
    LOOK_S,
    MOST_PER_LOOK,
    RULES,
    Comparison,
    Evidence,
    bet_factor,
    quantile_bucket,
    quantile_s,
    wilson,
)
from serve_app.settings.knobs import CanaryRules
from serve_app.wire.versions import bucket


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5])
def test_equal_versions_rarely_raise_an_alarm(share: float) -> None:
    rng = np.random.default_rng(57)
    # Without the least difference, so that the bound of the test alone is seen.
    rules = CanaryRules(errors=0.0, length=0.0, empty=0.0, tool_calls=0.0, ttft_p95=1.0, itl_p95=1.0)

    alarms = sum(bool(simulate(rng, share, 30, rules)[0]) for _ in range(15))

    assert alarms == 0


@pytest.mark.parametrize(("share", "rate"), [(0.05, 0.01), (0.25, 0.05), (0.5, 0.3)])
def test_wealth_of_equal_versions_keeps_its_bound(share: float, rate: float) -> None:
    """Ville's bound holds for each threshold, and a low one shows it with few comparisons."""
    rng, comparisons, looks = np.random.default_rng(57), 400, 60
    news = rng.binomial(REQUESTS_PER_LOOK, share, (comparisons, looks))
    bad_news, bad_olds = rng.binomial(news, rate), rng.binomial(REQUESTS_PER_LOOK - news, rate)
    highest = []
    for new, bad_new, bad_old in zip(news.tolist(), bad_news.tolist(), bad_olds.tolist(), strict=True):
        found, most = Evidence(), 0.0
        for look in range(looks):
            old = (bad_old[look], REQUESTS_PER_LOOK - new[look])
            found = found.learn((bad_new[look], new[look]), old, 0.5 if look == 0 else 0.5 / looks)
            most = max(most, found.value)
        highest.append(most)

    for bound in (5.0, 20.0, 100.0):
        beyond = sum(most >= bound for most in highest) / comparisons
        assert beyond <= 1.0 / bound + 2.0 * np.sqrt(1.0 / bound / comparisons)


@pytest.mark.parametrize(
    ("share", "rates", "rise"), [(0.1, (0.01, 0.01), 0.03), (0.5, (0.3, 0.3), 0.1), (0.5, (0.3, 0.1), 0.3)]
)
def test_bets_gain_nothing_on_average_if_the_new_version_is_no_worse(
    share: float, rates: tuple[float, float], rise: float
) -> None:
    rng = np.random.default_rng(7)
    old_rate, new_rate = rates
    gains = [
        bet_factor((rng.binomial(5, new_rate), 5), (rng.binomial(20, old_rate), 20), old_rate, rise)
        for _ in range(20_000)
    ]

    assert np.mean(gains) <= 1.0 + 3.0 * np.std(gains) / np.sqrt(len(gains))
    assert max(gains) <= MOST_PER_LOOK


@pytest.mark.parametrize(
    ("worse", "rule", "most"),
    [
        ({"errors": 0.05}, "errors", 700),
        ({"length": 1.0}, "length", 150),
        ({"empty": 0.3}, "empty", 200),
        ({"tool_calls": 0.5}, "tool_calls", 400),
        ({"slower": 3.0}, "ttft_p95", 300),
    ],
)
@pytest.mark.parametrize("share", [0.05, 0.25])
def test_bad_versions_are_caught_within_some_hundred_requests(
    worse: dict[str, float], rule: str, most: int, share: float
) -> None:
    rng = np.random.default_rng(11)

    for _ in range(3):
        why, requests = simulate(rng, share, 900, CanaryRules(), **worse)
        assert why.startswith(f"{rule}: ")
        assert requests <= most


def test_a_version_that_turns_bad_later_is_caught() -> None:
    rng = np.random.default_rng(5)
    rules, found = CanaryRules(), Comparison(0.0, 0.0)
    for look in range(1, 400):
        worse = {"errors": 0.2} if look > 200 else {}
        found = found.look(drawn(rng, 5, **worse), drawn(rng, 15), rules, look * LOOK_S)
        if found.verdict(rules):
            break

    assert 200 < look < 300


def test_a_failing_version_with_few_requests_is_caught() -> None:
    """Each version has a request every 20 s, never in the same look."""
    rules, found = CanaryRules(), Comparison(0.0, 0.0)
    for look in range(1, 400):
        new = Counter(requests=1, errors=1) if look % 10 == 0 else Counter[str]()
        old = Counter(requests=1) if look % 10 == 5 else Counter[str]()
        found = found.look(new, old, rules, look * LOOK_S)
        if found.verdict(rules):
            break

    assert look <= 200


def test_equal_versions_with_few_requests_rarely_raise_an_alarm() -> None:
    rng, looks, highest = np.random.default_rng(58), 300, []
    for _ in range(200):
        found, most = Evidence(), 0.0
        for look in range(looks):
            new, old = rng.binomial(1, (0.05, 0.1)).tolist()
            trials = ((rng.binomial(new, 0.3), new), (rng.binomial(old, 0.3), old))
            found = found.learn(*trials, 0.5 if look == 0 else 0.5 / looks)
            most = max(most, found.value)
        highest.append(most)

    for bound in (5.0, 20.0):
        beyond = sum(most >= bound for most in highest) / len(highest)
        assert beyond <= 1.0 / bound + 2.0 * np.sqrt(1.0 / bound / len(highest))


def test_one_burst_of_errors_is_not_enough() -> None:
    rules, found = CanaryRules(), Comparison(0.0, 0.0)
    rng = np.random.default_rng(3)
    for look in range(1, 50):
        new = Counter(requests=200, errors=200) if look == 20 else drawn(rng, 10)
        found = found.look(new, drawn(rng, 30), rules, look * LOOK_S)
        assert not found.verdict(rules)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30)), max_size=60))
def test_no_alarm_unless_the_new_version_looks_worse(looks: list[tuple[int, int, int]]) -> None:
    rules, found = CanaryRules(), Comparison(0.0, 0.0)
    for number, (errors, good, old) in enumerate(looks, 1):
        new = Counter(requests=errors + good, errors=errors)
        found = found.look(new, Counter(requests=2 * old, errors=old), rules, number * LOOK_S)
        if found.verdict(rules):
            assert found.evidence["errors"].rise >= 0.01
            assert sum(each[0] for each in looks[:number]) >= 3


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40))
def test_no_alarm_without_the_rule(looks: list[int]) -> None:
    rules = CanaryRules(errors=None)
    found = Comparison(0.0, 0.0)
    for number, bad in enumerate(looks, 1):
        found = found.look(Counter(requests=bad, errors=bad), Counter(requests=40), rules, number * LOOK_S)

    assert not found.verdict(rules)
    assert "errors" not in found.evidence


def test_each_window_begins_with_new_counts() -> None:
    rules, found = CanaryRules(window_s=60), Comparison(0.0, 0.0)
    found = found.look(Counter(requests=5), Counter(requests=5), rules, 59.0)

    assert found.new["requests"] == 5
    assert found.look(Counter(requests=5), Counter(), rules, 60.0) == Comparison(60.0, 60.0)


def test_the_document_has_shares_with_their_intervals() -> None:
    counts = Counter(
        {"requests": 100, "errors": 5, "answers": 95, "tokens": 950, "ttft:0": 90, "ttft:10": 10}
    )
    found = Comparison(0.0, 0.0).look(counts, counts, CanaryRules(), 2.0).document()

    assert found["new"] == found["old"]
    assert found["new"]["errors"] == {"bad": 5, "of": 100, "interval": [0.02154, 0.11175]}
    assert (found["new"]["tokens_mean"], found["new"]["ttft_p50_s"]) == (10.0, 1.0)
    assert found["new"]["itl_p95_s"] is None
    assert set(found["evidence"]) <= set(RULES)


def test_wilson_interval_stays_within_0_and_1() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0


@given(st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=200))
def test_quantiles_are_within_a_tenth(seconds: list[float]) -> None:
    found = Counter(bucket(each) for each in seconds)
    true = float(np.quantile(seconds, 0.95, method="inverted_cdf"))
    read = quantile_s(found, 0.95)

    assert read is not None
    assert true / 1.01 <= read <= 1.11 * true
    assert quantile_bucket(found, 1.0) == max(found)
