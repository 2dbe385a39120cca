"""From a scenario to its requests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from loadtests import plan as plan_module
from loadtests.kinds import Length, Think, Turns
from loadtests.plan import Planned, draw_pause_s, draw_whole, endless, plan
from loadtests.scenario import Scenario
from serve_app.settings.settings_error import SettingsError

HERE = Path()
TRACE = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{i},{100 + i},{10 + i}\n" for i in range(60))


def scenario(*arrivals: dict[str, Any], **more: Any) -> Scenario:
    return Scenario.model_validate(
        {"name": "test", "arrivals": arrivals, "requests": [{"kind": "a"}], **more}
    )


def times(*arrivals: dict[str, Any], **more: Any) -> list[float]:
    return [request.at_s for request in plan(scenario(*arrivals, **more), HERE)[0]]


def test_equal_scenarios_and_seeds_plan_equal_requests() -> None:
    mixed = scenario(
        {"shape": "steady", "for_s": 30, "rate": 5},
        {"shape": "wave", "for_s": 60, "rate": 5, "swing": 0.5, "period_s": 20},
        requests=[
            {"kind": "a", "prompt_tokens": {"median": 50, "sigma": 1, "most": 500}},
            {"kind": "b", "output_tokens": {"least": 5, "most": 9}, "leave": {"share": 0.5, "after_s": 1}},
        ],
        seed=7,
    )

    assert plan(mixed, HERE) == plan(mixed, HERE)
    other = plan(mixed.model_copy(update={"seed": 8}), HERE)
    assert other != plan(mixed, HERE)


def test_other_lengths_leave_every_intended_time_as_it_was() -> None:
    steady = {"shape": "steady", "for_s": 30, "rate": 5}
    spread = {"median": 50, "sigma": 1, "most": 500}

    assert times(steady) == times(steady, requests=[{"kind": "a", "prompt_tokens": spread}])


def test_poisson_arrivals_have_their_rate_and_exponential_gaps() -> None:
    at = np.array(times({"shape": "steady", "for_s": 2000, "rate": 5}))

    gaps = np.diff(at)
    assert len(at) == pytest.approx(10_000, rel=0.04)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.04)  # as of the exponential law, and no other
    assert 0 <= at[0] < at[-1] < 2000


def test_even_arrivals_are_evenly_spaced() -> None:
    assert times({"shape": "steady", "for_s": 2, "rate": 2, "spacing": "even"}) == [0.25, 0.75, 1.25, 1.75]


def test_a_ramp_has_its_rate_at_each_moment() -> None:
    at = np.array(times({"shape": "ramp", "for_s": 1000, "rate": 0, "to_rate": 20}))

    assert len(at) == pytest.approx(10_000, rel=0.04)
    halves = np.searchsorted(at, [500])[0]
    assert halves == pytest.approx(2500, rel=0.08)  # a quarter of a triangle


def test_a_wave_begins_at_its_least_and_peaks_midway() -> None:
    at = np.array(times({"shape": "wave", "for_s": 300, "rate": 20, "swing": 1, "period_s": 300}))

    counted, _ = np.histogram(at, bins=3, range=(0, 300))
    assert counted.sum() == pytest.approx(6000, rel=0.05)
    # The integral of 1 - cos over the middle third, by that over all.
    assert counted[1] / counted.sum() == pytest.approx(1 / 3 + np.sqrt(3) / (2 * np.pi), abs=0.02)


def test_stretches_follow_one_another_and_repeat() -> None:
    burst = {"shape": "burst", "for_s": 10, "requests": 2, "over_s": 1}

    requests, length_s = plan(scenario(burst, {"shape": "idle", "for_s": 50}, repeat=2), HERE)

    assert [request.at_s for request in requests] == [0.0, 0.5, 60.0, 60.5]
    assert [request.index for request in requests] == [0, 1, 2, 3]
    assert length_s == 120


def test_kinds_come_by_their_shares_with_their_lengths() -> None:
    kinds = [
        {"kind": "short", "share": 3, "prompt_tokens": 8, "output_tokens": {"least": 2, "most": 4}},
        {
            "kind": "long",
            "prompt_tokens": {"median": 400, "sigma": 0.7, "least": 10, "most": 2000},
            "model": "big",
        },
    ]

    requests, _ = plan(scenario({"shape": "steady", "for_s": 1000, "rate": 8}, requests=kinds), HERE)

    short = [request for request in requests if request.kind == "short"]
    long = [request.prompt_tokens for request in requests if request.kind == "long"]
    assert len(short) / len(requests) == pytest.approx(0.75, abs=0.03)
    assert {request.output_tokens for request in short} == {2, 3, 4}
    assert {request.model for request in requests if request.kind == "long"} == {"big"}
    assert np.median(long) == pytest.approx(400, rel=0.08)
    assert np.percentile(long, 95) == pytest.approx(400 * np.exp(0.7 * 1.645), rel=0.15)
    assert min(long) >= 10
    assert max(long) <= 2000


def test_clients_leave_by_their_share() -> None:
    kinds = [{"kind": "a", "leave": {"share": 0.3, "after_tokens": 5}}]

    requests, _ = plan(scenario({"shape": "steady", "for_s": 1000, "rate": 5}, requests=kinds), HERE)

    leaving = [request for request in requests if request.leave_after_tokens == 5]
    assert len(leaving) / len(requests) == pytest.approx(0.3, abs=0.03)


def test_a_shared_prefix_leaves_each_prompt_a_token_of_its_own() -> None:
    kinds = [{"kind": "a", "prompt_tokens": 10, "shared_prefix_tokens": 50, "prefixes": 3}]

    requests, _ = plan(scenario({"shape": "burst", "for_s": 1, "requests": 50}, requests=kinds), HERE)

    assert {request.prefix_tokens for request in requests} == {9}
    assert {request.prefix for request in requests} == {0, 1, 2}


def test_a_trace_gives_times_and_lengths_by_its_scales(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    recorded = {
        "shape": "trace",
        "file": "trace.csv",
        "start_s": 10,
        "for_s": 20,
        "time": 0.5,
        "tokens": 0.5,
        "most_output_tokens": 12,
    }

    requests, length_s = plan(scenario({"shape": "idle", "for_s": 5}, recorded), tmp_path)

    assert length_s == 15
    assert requests[0] == Planned(0, 5.0, "a", None, "completions", 55, 10)
    assert [request.at_s for request in requests] == [5 + i / 2 for i in range(20)]
    assert max(request.output_tokens for request in requests) == 12


def test_a_missing_trace_is_an_error(tmp_path: Path) -> None:
    recorded = {"shape": "trace", "for_s": 20}

    with pytest.raises(SettingsError, match="without `file`; name one there, or with --trace"):
        plan(scenario(recorded), tmp_path)
    with pytest.raises(SettingsError, match=r"missing\.csv"):
        plan(scenario(recorded), tmp_path, str(tmp_path / "missing.csv"))


def test_a_plan_too_large_for_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="at most 2,000,000 requests"):
        plan(scenario({"shape": "steady", "for_s": 600_000, "rate": 100_000}), HERE)
    monkeypatch.setattr(plan_module, "MOST_REQUESTS", 10)
    with pytest.raises(SettingsError, match="at most 10 requests"):
        plan(scenario({"shape": "burst", "for_s": 1, "requests": 8}, repeat=2), HERE)


def test_a_closed_loop_never_runs_out_of_requests() -> None:
    closed = Scenario.model_validate(
        {"name": "c", "closed": {"streams": 1, "for_s": 1}, "requests": [{"output_tokens": 5}]}
    )

    source = endless(closed)

    assert [next(source).index for _ in range(1000)] == list(range(1000))


TALK = {"kind": "a", "api": "chat", "conversation": {"turns": 3, "think_s": 5}}


def talks(seed: int = 0, for_s: float = 1000, **more: Any) -> tuple[Planned, ...]:
    of = scenario({"shape": "steady", "for_s": for_s, "rate": 1}, requests=[TALK | more], seed=seed)
    return plan(of, HERE)[0]


def test_each_arrival_begins_a_conversation_whose_turns_follow_their_answers() -> None:
    first = talks(shared_prefix_tokens=100, prompt_tokens=10, output_tokens=20)[0]

    assert [one.turn for one in first.turns()] == [1, 2, 3]
    assert {one.session for one in first.turns()} == {first.index}
    assert [one.think_s for one in first.turns()] == [0.0, 5.0, 5.0]
    assert [(one.prefix_tokens, one.history_tokens, one.own_tokens) for one in first.turns()] == [
        (100, 0, 10),
        (100, 30, 10),
        (100, 60, 10),
    ]
    assert [one.prompt_tokens for one in first.turns()] == [110, 140, 170]


def test_every_turn_of_every_conversation_has_an_index_of_its_own() -> None:
    indexes = [one.index for first in talks() for one in first.turns()]

    assert sorted(indexes) == list(range(len(indexes)))


def test_turns_and_pauses_follow_the_published_distributions() -> None:
    found = talks(conversation={})
    counts = [sum(1 for _ in first.turns()) for first in found]
    pauses = [one.think_s for first in found for one in first.turns() if one.turn > 1]

    assert np.mean(counts) == pytest.approx(3.5, rel=0.08)
    assert np.mean(np.array(counts) <= 4) == pytest.approx(0.74, abs=0.04)
    assert np.percentile(pauses, (25, 50, 75)) == pytest.approx([61, 120, 235], rel=0.1)
    assert [first.at_s for first in found] == [first.at_s for first in talks()]


def drawn(distribution: Any, given: Any, draw: Any, count: int = 20_000) -> Any:
    parsed = TypeAdapter(distribution).validate_python(given)
    rng = np.random.default_rng(1)
    return np.array([draw(parsed, rng) for _ in range(count)])


def test_a_range_is_even_with_both_ends() -> None:
    pauses = drawn(Think, {"least": 2, "most": 4}, draw_pause_s)

    assert set(drawn(Turns, {"least": 2, "most": 4}, draw_whole)) == {2, 3, 4}
    assert set(drawn(Length, {"least": 2, "most": 4}, draw_whole)) == {2, 3, 4}
    assert pauses.mean() == pytest.approx(3.0, abs=0.02)
    assert (pauses.min() >= 2, pauses.max() <= 4) == (True, True)


def test_a_spread_has_its_median_and_is_cut() -> None:
    given = {"median": 10, "sigma": 1.0, "least": 2, "most": 60}
    pauses, lengths = drawn(Think, given, draw_pause_s), drawn(Length, given, draw_whole)

    assert np.median(pauses) == pytest.approx(10, rel=0.03)
    assert np.median(lengths) == pytest.approx(10, abs=1)
    assert (pauses.min(), pauses.max(), lengths.min(), lengths.max()) == (2, 60, 2, 60)
    assert drawn(Turns, {"mean": 3.5, "most": 4}, draw_whole).max() == 4
