"""The policy in closed loops with the fleet of a replay, over tens of minutes."""

from collections.abc import Callable
from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest

from replay.fleet.conditions import Conditions
from replay.production import EPOCH, Production
from replay.result import Result
from replay.simulation import simulate
from serve_app.controller.serve_policy import ServePolicy
from serve_app.policy.capacity_model import StepTime
from serve_app.policy.decide import Decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs
from serve_app.wire.served_models import ServedModel
from tests.replay.controllers import ArrayTrace
from tests.replay.fleet.build import profile

A100 = StepTime(0.0115, 0.00012, 1.2e-7, 5e-5)
TWICE_AS_FAST = StepTime(*(value / 2 for value in astuple(A100)))
HALF_AS_FAST = StepTime(*(value * 2 for value in astuple(A100)))


def knobs(**changed: object) -> Knobs:
    return Knobs(min_replicas=0, max_replicas=32).model_copy(update=changed)


def arrivals(rate: Callable[[int], float], seconds: int, prompt: int = 1000, output: int = 128) -> ArrayTrace:
    """Poisson arrivals of like requests, `rate(second)` a second."""
    draw = np.random.default_rng(0)
    counts = draw.poisson([rate(second) for second in range(seconds)])
    at = np.sort(np.repeat(np.arange(seconds), counts) + draw.uniform(0, 1, counts.sum()))
    return ArrayTrace("made up", at, np.full(len(at), prompt), np.full(len(at), output))


def replayed(
    requests: ArrayTrace,
    *,
    knobs: Knobs,
    step: StepTime = A100,
    start_s: float = 60.0,
    replicas: int = 2,
    policy: type[ServePolicy] = ServePolicy,
) -> Result:
    base_s, per_sequence_s, per_kv_token_s, per_prefill_token_s = astuple(step)
    engines = profile(
        step_base_s=base_s,
        step_per_sequence_s=per_sequence_s,
        step_per_kv_token_s=per_kv_token_s,
        step_per_prefill_token_s=per_prefill_token_s,
        kv_cache_tokens=200_000,
        max_num_seqs=64,
        max_num_batched_tokens=8192,
    )
    of = Conditions(
        cold_start_s=(start_s, start_s),
        body_noise=0.0,
        ttft_target_s=knobs.ttft_target_s,
        itl_target_s=knobs.itl_target_s,
    )
    bounds = knobs.min_replicas, knobs.max_replicas
    return simulate(requests, Production(knobs, policy), engines, of, bounds=bounds, initial=replicas)


def changes(result: Result, after_s: float = 0.0) -> list[int]:
    """The changes of the target after so long: 2 for two replicas more, -1 for one fewer."""
    line = result.timeline
    targets = [int(target) for at, target in zip(line.at_s, line.target, strict=True) if at >= after_s]
    return [after - before for before, after in pairwise(targets) if after != before]


def test_constant_load_gets_a_constant_fleet() -> None:
    """12 Poisson arrivals a second once took a replica away and brought it back 22 times an hour."""
    result = replayed(arrivals(lambda _: 12.0, 1200), knobs=knobs(), replicas=5)

    later = changes(result, after_s=600)
    assert sum(one * other < 0 for one, other in pairwise(later)) <= 1
    assert result.windows.attained[10:].mean() > 0.9


@pytest.mark.parametrize(("step", "replicas"), [(TWICE_AS_FAST, 1), (HALF_AS_FAST, 4)])
def test_hardware_unlike_the_prior_gets_the_replicas_it_needs(step: StepTime, replicas: int) -> None:
    result = replayed(arrivals(lambda _: 4.0, 700, 500), knobs=knobs(itl_target_s=0.05), step=step)

    assert result.timeline.target[-1] <= replicas
    assert result.windows.attained[10:].mean() > 0.7


def test_a_growing_load_is_followed() -> None:
    growing = arrivals(lambda second: min(second / 30.0, 8.0), 600)
    result = replayed(growing, knobs=knobs(downscale_to_zero_delay_s=60.0), start_s=30.0, replicas=1)

    assert 3 <= result.timeline.target.max() <= 12
    assert result.attainment > 0.7


class _Forgetful(ServePolicy):
    """Loses its memory every 130 s."""

    def decide(
        self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float
    ) -> tuple[Decision, PolicyState]:
        lost = state.since is not None and (now - EPOCH) // 130 != (state.since - EPOCH) // 130
        return super().decide(model, snapshot, PolicyState() if lost else state, now)


def test_a_policy_that_loses_its_memory_keeps_the_fleet() -> None:
    result = replayed(arrivals(lambda _: 6.0, 450), knobs=knobs(), replicas=4, policy=_Forgetful)

    assert (result.timeline.target.min(), result.rejected) == (4, 0)
    assert result.timeline.target.max() <= 6


def test_an_infeasible_ttft_target_is_not_chased() -> None:
    # 8,000 tokens are 0.4 s of prefill, which no fleet shortens to 0.2 s.
    result = replayed(arrivals(lambda _: 1.5, 600, 8000), knobs=knobs(ttft_target_s=0.2))

    assert result.timeline.target.max() <= 5


@pytest.mark.parametrize(("down_s", "zero_s"), [(0.0, 20.0), (90.0, 0.0), (30.0, 120.0)])
def test_an_ended_load_reaches_zero_within_the_delays(down_s: float, zero_s: float) -> None:
    delays = knobs(downscale_delay_s=down_s, downscale_to_zero_delay_s=zero_s)
    load = arrivals(lambda second: 3.0 if second < 300 else 5.0 * (second == 1200), 1201)
    line = replayed(load, knobs=delays, start_s=20.0, replicas=1).timeline

    zero = next(at for at, target in zip(line.at_s, line.target, strict=True) if target == 0)
    assert zero <= 300 + max(down_s, zero_s) + 60.0  # the end of the last answer, a window and its report
