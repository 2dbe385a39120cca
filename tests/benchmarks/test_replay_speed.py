import numpy as np
import pytest

from benchmarks.replay_speed import __main__ as command
from benchmarks.replay_speed.timed import Repeated, Swinging, Timed
from traces import ArrayTrace
from traces.trace import CHUNK_REQUESTS, Trace


def arrivals(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.concatenate([chunk.arrival_s for chunk in trace.chunks()])


def took(policy: str, requests: int, cpu_s: float, peak_mib: float) -> Timed:
    return Timed(policy, requests, 8.0, cpu_s, cpu_s, 200.0, peak_mib, 1.0, 0.99)


def test_made_up_traffic_swings_around_its_mean_and_is_the_same_each_time() -> None:
    trace = Swinging(8 * CHUNK_REQUESTS)
    at = arrivals(trace)
    minutes = np.bincount((at / 60.0).astype(int))[:-1] / 60.0

    assert len(at) == 8 * CHUNK_REQUESTS
    assert (np.diff(at) >= 0).all()
    assert 19 < minutes.min() < 24 < 60 < minutes.max() < 72
    assert np.array_equal(at, arrivals(trace))
    assert trace.progress() == 1.0


def test_a_trace_is_repeated_end_to_end_to_the_request() -> None:
    trace = Repeated(ArrayTrace("three", [0.0, 1.0, 4.0], [10, 20, 30], [1, 2, 3]), 7)
    chunks = list(trace.chunks())

    assert arrivals(trace).tolist() == [0.0, 1.0, 4.0, 4.0, 5.0, 8.0, 8.0]
    assert [tokens for chunk in chunks for tokens in chunk.input_tokens] == [10, 20, 30, 10, 20, 30, 10]


def test_goals_are_time_for_a_million_and_memory_that_does_not_grow() -> None:
    assert command.missed([took("ours", 10**5, 9.0, 220), took("ours", 10**6, 59.0, 260)]) == []
    assert command.missed([took("ours", 2 * 10**6, 119.0, 230), took("static:16", 10**6, 90.0, 300)]) == []
    slow, large = command.missed([took("ours", 10**5, 9.0, 220), took("ours", 10**6, 61.0, 300)])

    assert slow == "1,000,000 requests under ours took 61 s; the goal is 60"
    assert (
        large == "1,000,000 requests under ours took 300 MiB, 100,000 took 220; the goal is 50 more at most"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--requests", "many"], "'many' is not a list of whole numbers"),
        (["--requests", "0"], "must be at least 1"),
        (["--trace", "none.csv"], "none.csv: no such file"),
    ],
)
def test_a_wrong_command_line_is_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.main(given)

    assert exit_.value.code == 2
    assert said in capsys.readouterr().err
