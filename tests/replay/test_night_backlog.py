"""A nightly backlog of a fifth of the day's tokens: its cost as background work, and within the traffic."""

from functools import cache

import numpy as np
import pytest

from replay.production import Production
from replay.profile import load_profile
from replay.result import Result
from replay.scenario import scenario
from serve_app.settings.knobs import Knobs
from traces import ArrayTrace
from traces.backlog import Backlog, WithBacklog

DAY_S = 1800.0
"""A day in an eightieth of the time, with starts that are as much shorter. It begins at noon."""
PEAK_RPS, NIGHT_SHARE = 20.0, 0.15
SHARE = 0.2
NIGHT = Backlog(SHARE, submit_s=DAY_S * 10 / 24, due_s=DAY_S * 8 / 24)
KNOBS = Knobs(min_replicas=1, max_replicas=16)


def day(more: float = 0.0) -> ArrayTrace:
    """Poisson arrivals that follow a sine from 03:00 to 15:00, with `more` of them as a share."""
    draw = np.random.default_rng(0)
    at = np.sort(draw.uniform(0.0, DAY_S, draw.poisson(PEAK_RPS * (1 + more) * DAY_S)))
    rise = (1 - np.cos((at / DAY_S + 9 / 24) * 2 * np.pi)) / 2
    at = at[draw.random(len(at)) < NIGHT_SHARE + (1 - NIGHT_SHARE) * rise]
    prompts = np.clip(np.rint(600.0 * np.exp(0.8 * draw.standard_normal(len(at)))), 1, 3000)
    outputs = np.clip(np.rint(150.0 * np.exp(0.7 * draw.standard_normal(len(at)))), 1, 1000)
    return ArrayTrace("day", at, prompts.astype(np.int64), outputs.astype(np.int64))


@cache
def replayed(*, backlog: bool = False, more: float = 0.0) -> Result:
    """The production policy on the day."""
    traffic = WithBacklog(day(more), NIGHT) if backlog else day(more)
    asked = scenario(
        traffic,
        knobs=KNOBS,
        profile=load_profile("a100-80gb"),
        cold_start_s=(2.0, 3.0),
        initial=7,
        backlog=NIGHT if backlog else None,
    )
    return asked.run(Production(KNOBS), warm=7)


def extra(result: Result) -> float:
    return result.gpu_seconds.total / replayed().gpu_seconds.total - 1.0


@pytest.mark.long
def test_backlog_fills_idle_capacity_and_buys_little() -> None:
    night, spread = replayed(backlog=True), replayed(more=SHARE)
    found = f"{extra(night):+.1%} and {extra(spread):+.1%} GPU-s"

    assert replayed().attainment >= 0.99
    assert night.attainment >= replayed().attainment - 0.01, found
    assert extra(night) <= 0.05, found
    assert extra(spread) >= 0.08, found
    assert night.background is not None
    assert night.background.finished == night.background.requests
    assert night.background.late == 0
    tokens = sum(int((chunk.input_tokens + chunk.output_tokens).sum()) for chunk in day().chunks())
    assert night.background.tokens == pytest.approx(SHARE * tokens, rel=0.05)
