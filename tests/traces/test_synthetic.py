"""Made-up traffic: its rates, its lengths, and prompts that grow."""

import numpy as np
import pytest

from traces.synthetic import Lengths, poisson, square_wave, with_growing_prompts
from traces.trace import ArrayTrace, Chunk, Trace, TraceError


def read(trace: Trace) -> Chunk:
    """A short trace's only chunk."""
    (chunk,) = trace.chunks()
    return chunk


def test_each_stretch_has_its_rate() -> None:
    made = read(poisson("step", [(2.0, 1000.0), (10.0, 1000.0)]))

    assert np.sum(made.arrival_s < 1000.0) == pytest.approx(2_000, rel=0.1)
    assert np.sum(made.arrival_s >= 1000.0) == pytest.approx(10_000, rel=0.05)
    assert made.arrival_s[-1] < 2000.0


def test_arrivals_of_a_constant_rate_have_gaps_as_random_as_poisson_has_them() -> None:
    gaps = np.diff(read(poisson("constant", [(10.0, 1000.0)])).arrival_s)

    # An exponential distribution's deviation is its mean.
    assert float(gaps.std()) == pytest.approx(float(gaps.mean()), rel=0.05)


def test_equal_seeds_give_equal_traces_and_others_give_others() -> None:
    first, again, other = (read(poisson("made", [(5.0, 200.0)], seed=seed)) for seed in (1, 1, 2))

    assert np.array_equal(first.arrival_s, again.arrival_s)
    assert np.array_equal(first.input_tokens, again.input_tokens)
    assert not np.array_equal(first.arrival_s[:100], other.arrival_s[:100])


def test_lengths_are_whole_have_their_median_and_are_cut() -> None:
    made = read(poisson("made", [(10.0, 1000.0)], lengths=Lengths(most_prompt=2_000, most_output=400)))

    assert float(np.median(made.input_tokens)) == pytest.approx(800, rel=0.05)
    assert float(np.median(made.output_tokens)) == pytest.approx(150, rel=0.05)
    assert (made.input_tokens.max(), made.output_tokens.max()) == (2_000, 400)


def test_a_square_wave_begins_low_and_changes_every_half_period() -> None:
    assert square_wave(15.0, 35.0, 300.0, 900.0) == [(15.0, 300.0), (35.0, 300.0), (15.0, 300.0)]


def test_a_trace_without_requests_is_refused() -> None:
    with pytest.raises(TraceError, match="none: has no requests"):
        poisson("none", [])


def test_prompts_grow_to_their_lengths_by_the_same_share_each_second() -> None:
    arrivals = [0.0, 99.0, 100.0, 200.0, 300.0, 400.0, 500.0]
    given = ArrayTrace("made", arrivals, [800] * 7, [10] * 7)

    made = read(with_growing_prompts(given, 8.0, 100.0, 300.0))

    assert made.input_tokens.tolist() == [100, 100, 100, 200, 400, 800, 800]
    assert (made.arrival_s.tolist(), made.output_tokens.tolist()) == (arrivals, [10] * 7)


def test_a_prompt_has_a_token_at_least() -> None:
    made = with_growing_prompts(ArrayTrace("made", [0.0], [3], [10]), 8.0, 100.0, 300.0)

    assert read(made).input_tokens.tolist() == [1]
