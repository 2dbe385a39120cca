"""A live run on CPU engines, recorded by `live_run/record.py`, against its replay."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay.profile import load_profile
from replay.result import Result
from replay.run import replay
from serve_app.settings.knobs import Knobs
from traces import open_trace

FOLDER = Path(__file__).parent / "live_run"
RUN: dict[str, Any] = json.loads((FOLDER / "run.json").read_text())


@pytest.fixture(scope="module", params=[0, 1, 2])
def result(request: pytest.FixtureRequest) -> Result:
    return replay(
        open_trace(FOLDER / "requests.jsonl.gz"),
        knobs=Knobs(**RUN["knobs"]),
        profile=load_profile(FOLDER / "fleet.yaml"),
        seed=request.param,
        initial=0,
    )


def test_replay_asks_for_the_replicas_of_the_live_run(result: Result) -> None:
    """From zero to three and back, twice: seven minutes, 769 requests, cold starts of half a minute."""
    live = np.array(RUN["replicas"])  # seconds, target, ready, starting: twice a second
    live[:, 0] -= RUN["first_arrival_s"]
    live = live[(live[:, 0] >= 0) & (live[:, 0] <= result.timeline.at_s[-1])]
    then = np.searchsorted(result.timeline.at_s, live[:, 0], side="right") - 1
    target, ready = result.timeline.target[then], result.timeline.ready[then]

    assert result.requests == 769
    assert target.max() == live[:, 1].max() == 3
    assert target.mean() == pytest.approx(live[:, 1].mean(), rel=0.05)
    assert ready.mean() == pytest.approx(live[:, 2].mean(), rel=0.10)
    # Decisions of the same kind fall within seconds of each other; the same target nine tenths of the time.
    assert (target == live[:, 1]).mean() > 0.9
    assert (abs(ready - live[:, 2]) <= 1).mean() > 0.95


def test_the_replay_changes_its_target_as_often(result: Result) -> None:
    live = np.diff([row[1] for row in RUN["replicas"]])

    assert abs(result.changes - np.count_nonzero(live)) <= 2
