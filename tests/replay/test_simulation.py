"""The driver: who is asked when, what is counted, and how a replay ends."""

from dataclasses import fields

import numpy as np
import pytest

from replay.policies import Sample
from replay.profile import Profile
from replay.result import Result
from replay.simulation import Controller, Sampled, simulate
from tests.replay.controllers import NoRequests, Scripted, steady, trace
from tests.replay.fleet.build import conditions, profile
from traces.trace import Trace


def replayed(
    requests: Trace,
    controller: Controller | None = None,
    *,
    of: Profile | None = None,
    bounds: tuple[int, int] = (0, 8),
    initial: int = 1,
    **changed: object,
) -> Result:
    return simulate(
        requests,
        controller or Scripted(lambda at: 1),
        of or profile(),
        conditions(**changed),
        bounds=bounds,
        initial=initial,
    )


def test_controller_is_asked_at_every_interval() -> None:
    controller = Scripted(lambda at: 1, interval_s=1.5)
    replayed(trace((0.2, 100, 1), (10.0, 100, 1)), controller)

    assert controller.asked == [1.5 * number for number in range(8)]


def test_targets_are_clipped_to_the_bounds() -> None:
    controller = Scripted(lambda at: 99 if at < 30 else -5)
    result = replayed(trace((0.0, 100, 1), (60.0, 100, 1)), controller, bounds=(2, 5), initial=0)

    assert (result.peak, result.changes) == (5, 2)
    assert result.timeline.target.tolist()[:1] == [5.0]
    assert set(result.timeline.target.tolist()) == {5.0, 2.0}
    assert result.timeline.ready[-1] == 2


def test_unanswered_requests_are_misses() -> None:
    # Nobody ever asks for a replica. Two are held, one is refused.
    result = replayed(
        trace((1.0, 100, 1), (2.0, 100, 1), (3.0, 100, 1)), Scripted(lambda at: 0), initial=0, max_held=2
    )

    assert (result.requests, result.rejected, result.unanswered) == (3, 1, 2)
    assert (result.ttft_ok, result.attainment, result.ttft.count) == (0.0, 0.0, 0.0)
    assert result.timeline.held[-1] == 2
    # An hour after the last arrival nobody waits any longer.
    assert 3500.0 < result.timeline.at_s[-1] <= 3603.0


def test_refused_requests_miss_their_minute() -> None:
    # In the second minute 20 good ones, and one that no cache can hold: 20 of 21 are 95.2 %. In the third 18.
    small = profile(kv_cache_tokens=1024)
    good = [(60.0 + number, 100, 1) for number in range(20)] + [
        (120.0 + number, 100, 1) for number in range(18)
    ]
    result = replayed(trace(*sorted([*good, (90.5, 1024, 1), (130.5, 1024, 1)])), of=small)

    assert result.windows.requests.tolist() == [0, 21, 19]
    assert result.windows.rejected.tolist() == [0, 1, 1]
    assert result.windows.attained.tolist() == [1, 1, 0]
    assert result.attainment == pytest.approx(21 / 40)
    assert result.ttft_ok == pytest.approx(38 / 40)


def test_nothing_to_replay_is_no_failure() -> None:
    result = replayed(NoRequests())

    assert (result.requests, result.duration_s, result.gpu_seconds.total) == (0, 0.0, 0.0)
    assert (result.attainment, result.ttft_ok, result.infeasible) == (1.0, 1.0, 0.0)
    assert result.ttft.at_s == (0.0,) * 4


def test_every_figure_is_a_finite_number() -> None:
    idle_minutes = trace((0.0, 300, 3), (400.0, 100, 1), (400.1, 30_000, 1))
    for result in (replayed(idle_minutes), replayed(idle_minutes, Scripted(lambda at: 0), initial=0)):
        for part in (result, result.windows, result.timeline, result.gpu_seconds, result.ttft, result.itl):
            for field in fields(part):
                value = getattr(part, field.name)
                if isinstance(value, float | tuple | np.ndarray):
                    assert np.isfinite(value).all(), field.name


def test_progress_rises_to_one() -> None:
    told: list[float] = []
    simulate(
        steady(1.0, 30.0), Scripted(lambda at: 1), profile(), conditions(), initial=1, progress=told.append
    )

    assert told[-1] == 1.0
    assert told == sorted(told)


class Watching:
    """A baseline policy that keeps what it is shown."""

    name, interval_s = "watching", 5.0

    def __init__(self) -> None:
        self.seen: list[Sample] = []

    def decide(self, sample: Sample) -> int:
        self.seen.append(sample)
        return 2


def test_a_baseline_is_shown_the_ready_replicas_and_totals() -> None:
    watching = Watching()
    requests = [(0.2 * number, 300, 40) for number in range(150)]
    result = replayed(trace(*requests), Sampled(watching), initial=2)
    last = watching.seen[-1]

    assert result.policy == "watching"
    assert [sample.at for sample in watching.seen[:4]] == [0.0, 5.0, 10.0, 15.0]
    assert (last.target, last.ready, last.held, last.replicas.tolist()) == (2, 2, 0, [1, 2])
    assert (last.at, last.arrivals) == (30.0, 150)
    assert last.ongoing == last.arrivals - last.finished
    assert last.arrived_tokens == 300 * last.arrivals
    assert last.finished_output_tokens == 40 * last.finished
    assert (last.kv_usage > 0).all()
    assert last.kv_cache_tokens == 20_000
