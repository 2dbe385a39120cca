from types import SimpleNamespace

import pytest
from vllm.v1.metrics.stats import IterationStats

from serve_app.engine.engine_steps import EngineSteps, step_seconds


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


def test_a_release_that_does_not_tell_the_batch_of_a_step_adds_to_the_totals_alone() -> None:
    steps = EngineSteps({}, 1, lambda: 7.0)
    stats = IterationStats()
    stats.prompt_token_stats.computed = 12
    scheduler = SimpleNamespace(num_running_reqs=3, kv_cache_usage=0.5)  # as before vLLM 0.26

    steps.add(scheduler, stats)

    assert (steps.taken, steps.prompt_tokens, steps.scheduler) == (1, 12, scheduler)
    assert (steps.sums.steps, steps.sums.batch) == (0, 0)
