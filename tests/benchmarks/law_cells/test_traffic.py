from dataclasses import replace

import numpy as np
import pytest

from benchmarks.law_cells.traffic import BUSY_THEN_QUIET, CONSTANT, GROWING_PROMPTS, SQUARE_WAVE, STEP
from tests.benchmarks.law_cells.build import CALM
from traces.trace import Chunk, Trace


def read(trace: Trace) -> Chunk:
    (chunk,) = trace.chunks()
    return chunk


def test_a_cut_has_the_beginning_of_the_same_rates() -> None:
    cut = replace(STEP, cut_s=1900.0)

    assert (cut.duration_s, cut.requests) == (1900.0, 6 * 1800 + 30 * 100)
    assert cut.digest == STEP.digest
    assert max(float(chunk.arrival_s[-1]) for chunk in cut.open().chunks()) < 1900.0


def test_a_digest_goes_by_the_requests() -> None:
    others = [CONSTANT, SQUARE_WAVE, BUSY_THEN_QUIET, STEP, GROWING_PROMPTS, replace(CONSTANT, seed=1)]

    assert len({traffic.digest for traffic in others}) == len(others)
    assert replace(CONSTANT, smooth=False).digest == CONSTANT.digest


def test_the_step_is_fivefold_and_the_square_wave_keeps_within_what_counts_as_smooth() -> None:
    assert [rate for rate, _ in STEP.stretches] == [6.0, 30.0]
    assert SQUARE_WAVE.requests == 25 * 3600


def test_growing_prompts_begin_an_eighth_as_long() -> None:
    grows = replace(GROWING_PROMPTS, stretches=((1.0, 3600.0),))
    grown, full = read(grows.open()), read(replace(grows, growth=None).open())

    assert np.array_equal(grown.arrival_s, full.arrival_s)
    shares = grown.input_tokens / full.input_tokens
    assert float(np.median(shares[grown.arrival_s < 1200.0])) == pytest.approx(1 / 8, rel=0.01)
    assert np.all(shares[grown.arrival_s > 1800.0] == 1.0)


def test_made_up_traffic_is_of_its_rate() -> None:
    assert len(read(CALM.open())) == pytest.approx(CALM.requests, rel=0.2)
