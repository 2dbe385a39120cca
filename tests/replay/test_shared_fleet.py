"""Several models on one simulated fleet with fewer places than models."""

import json
from pathlib import Path

import numpy as np
import pytest

from replay.defaults import KNOBS
from replay.profile import load_profile
from replay.shared_bound import Hindsight, most_in_time
from replay.shared_fleet import (
    LeastRecentlyUsed,
    Own,
    SharedPolicy,
    SharedResult,
    Sharing,
    StaticPlaces,
    conditions_of,
    popular,
    read_models,
    simulate_shared,
)
from traces.trace import ArrayTrace, Trace, TraceError

PROFILE = load_profile("a100-80gb")


def trace(name: str, begin: float, requests: int) -> ArrayTrace:
    at = begin + 2.0 * np.arange(requests)
    return ArrayTrace(name, at, np.full(requests, 100), np.full(requests, 20))


TRACES: dict[str, Trace] = {"a": trace("a", 0.0, 60), "b": trace("b", 150.0, 30), "c": trace("c", 400.0, 90)}


def replayed(policy: SharedPolicy, places: int = 1) -> SharedResult:
    return simulate_shared(TRACES, policy, places, PROFILE, conditions_of(KNOBS, PROFILE, 0))


def test_models_in_sequence_all_get_the_only_place() -> None:
    ours, own = replayed(Sharing(list(TRACES), KNOBS)), replayed(Own(list(TRACES), KNOBS))

    assert ours.unanswered == 0
    assert ours.starts == 3
    assert ours.in_time > own.in_time
    assert ours.in_time <= most_in_time(TRACES, 1, PROFILE, KNOBS.ttft_target_s, 4)


def test_schedule_with_hindsight_is_within_the_bound() -> None:
    fleet = (TRACES, 1, PROFILE, KNOBS.ttft_target_s, 4)
    hindsight, bound = replayed(Hindsight(*fleet)), most_in_time(*fleet)

    assert hindsight.unanswered == 0
    assert replayed(Sharing(list(TRACES), KNOBS)).in_time <= hindsight.in_time + 5  # starts take 60 to 90 s
    assert hindsight.in_time <= bound


def test_bound_leaves_out_a_start_between_two_models() -> None:
    first = ArrayTrace("a", np.array([61.0, 61.5]), np.array([100, 100]), np.array([1, 1]))
    for second_at, bound in ((100.0, 2), (150.0, 3)):
        second = ArrayTrace("b", np.array([second_at]), np.array([100]), np.array([1]))
        assert most_in_time({"a": first, "b": second}, 1, PROFILE, 0.2, 4) == bound


def test_bound_counts_what_replicas_prefill_in_time() -> None:
    burst = ArrayTrace("a", np.full(100, 61.0), np.full(100, 2000), np.full(100, 1))  # 0.1 s of prefill each
    for replicas, bound in ((1, 2), (4, 8)):
        assert most_in_time({"a": burst}, replicas, PROFILE, 0.2, 4) == bound


def test_with_room_for_all_sharing_changes_nothing() -> None:
    ours, own = (replayed(policy(list(TRACES), KNOBS), places=40) for policy in (Sharing, Own))

    assert ours.in_time == own.in_time
    assert ours.gpu_seconds == own.gpu_seconds


def test_least_recently_used_model_gives_its_place() -> None:
    assert replayed(LeastRecentlyUsed()).unanswered == 0


def test_models_without_a_gpu_of_their_own_get_no_answer() -> None:
    result = replayed(StaticPlaces(popular(TRACES)))

    assert result.unanswered == 90
    assert result.starts == 1


def test_request_log_of_several_models_is_split(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    requests = [("b", 105.0, "ok"), ("a", 100.0, "failed"), ("a", 103.0, "ok"), ("b", 104.0, "ok")]
    lines = [
        {"arrived_at": at, "input_tokens": 10, "output_tokens": 2, "model": model, "outcome": outcome}
        for model, at, outcome in requests
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))

    found = read_models([str(log)])

    arrivals = {
        model: np.concatenate([c.arrival_s for c in trace.chunks()]) for model, trace in found.items()
    }
    assert {model: at.tolist() for model, at in arrivals.items()} == {"a": [0.0], "b": [1.0, 2.0]}


def test_file_that_names_no_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    with pytest.raises(TraceError, match="only a request log names the model"):
        read_models([str(file)])
