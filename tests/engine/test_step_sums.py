from __future__ import annotations

import pytest

from serve_app.engine.step_sums import StepMeans, StepSums, step_seconds


def test_the_means_are_over_the_steps_since_they_were_last_taken() -> None:
    sums = StepSums()
    sums.add(0.01, batch=2, prefill_tokens=100, kv_tokens=1000.0)
    sums.add(0.03, batch=4, prefill_tokens=0, kv_tokens=3000.0)

    assert sums.take() == StepMeans(2, 0.02, 3.0, 50.0, 2000.0)

    sums.add(0.5, batch=1, prefill_tokens=0, kv_tokens=1.0)

    assert sums.take() == StepMeans(1, 0.5, 1.0, 0.0, 1.0)


def test_without_steps_there_are_zeros() -> None:
    sums = StepSums()

    assert sums.take() == sums.take() == StepMeans(0, 0.0, 0.0, 0.0, 0.0)


def test_a_step_takes_what_it_added_to_the_streams() -> None:
    assert step_seconds([0.02], 0.5, 0.4, 300.0) == 0.02


def test_a_sequence_that_was_preempted_does_not_lengthen_the_step() -> None:
    assert step_seconds([0.02, 9.0, 0.02], None, None, 1.0) == 0.02


def test_a_step_without_decodes_takes_the_time_since_the_one_before() -> None:
    assert step_seconds([], 0.07, 0.4, 1.0) == 0.07


def test_after_a_pause_a_step_takes_as_long_as_the_prefill_it_was() -> None:
    assert step_seconds([], None, 0.04, 1.0) == 0.04


def test_of_the_first_prefill_step_of_several_vllms_own_figure_is_taken() -> None:
    assert step_seconds((), None, None, 12.5) == pytest.approx(0.0125)
