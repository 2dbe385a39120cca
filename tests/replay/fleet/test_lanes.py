"""Lanes in the simulated fleet: who goes first, who yields, and which figures leave background work out."""

import pytest

from replay.fleet.fleet import Fleet
from replay.fleet.layout import E2E, ITL, TTFT, TTFT_BACKGROUND, TTFT_INTERACTIVE
from serve_app.wire.signals import EngineSignals
from tests.replay.fleet.build import chunk, fleet, of, profile, serve, total

FULL = ("background",) * 4
"""As many as a batch of `profile()` has places."""


def report(made: Fleet) -> EngineSignals:
    return EngineSignals(*made.report([0])[0].tolist())


def counted(made: Fleet, histogram: int) -> float:
    return float(made.memory.histograms[histogram].sum())


def test_background_yields_its_place_within_one_step() -> None:
    made = fleet()
    serve(made, *[(0.0, 100, 50)] * 4, until=0.1, lanes=FULL)
    began = of(made, "step_end")
    serve(made, (0.1, 100, 5), until=began + 0.001)
    said = report(made)

    # The step that began when the request arrived has ended, and the next one has the request in it.
    assert of(made, "step_began") == began
    assert (said.running_requests, said.waiting_requests) == (1, 0)
    assert (said.background_running_requests, said.background_waiting_requests) == (3, 1)


def test_preempted_background_work_is_computed_again_and_finished() -> None:
    made = fleet()
    serve(made, *[(0.0, 100, 50)] * 4, until=0.1, lanes=FULL)
    serve(made, (0.1, 100, 5), until=0.2)
    made.advance(20.0)

    assert (total(made, "background_finished"), total(made, "finished"), total(made, "open")) == (4, 1, 0)
    assert total(made, "preemptions") == 1


def test_background_yields_the_kv_cache() -> None:
    made = fleet(of=profile(kv_cache_tokens=2000))
    serve(made, (0.0, 900, 90), (0.0, 900, 90), until=0.5, lanes=FULL[:2])
    serve(made, (0.5, 1500, 5), until=of(made, "step_end") + 0.001)

    assert (of(made, "background_batch"), of(made, "batch_size")) == (0, 1)


def test_background_waits_while_others_are_queued_for_a_cold_start() -> None:
    made = fleet(0)
    requests = [(0.0, 100, 20)] * 9
    serve(made, *requests, until=1.0, lanes=[*FULL, *["standard"] * 5])
    made.set_target(1)
    made.advance(11.0)
    made.settle()

    # A batch of four and one ahead.
    assert (total(made, "held"), of(made, "in_flight"), of(made, "background")) == (0, 5, 0)
    assert total(made, "background_held") == 4
    made.advance(20.0)
    assert total(made, "background_finished") == 4


def test_background_is_released_only_to_free_places() -> None:
    made = fleet(2)
    serve(made, *[(0.0, 100, 500)] * 12, until=0.05, lanes=["standard"] * 2 + ["background"] * 10)

    # A batch of four and one ahead on each replica.
    assert total(made, "background_held") == 2
    assert [of(made, name, slot) for slot in range(2) for name in ("in_flight", "background")] == [1, 4, 1, 4]


def test_full_batches_of_background_refuse_nobody() -> None:
    made = fleet(max_ongoing_requests=4)
    serve(made, *[(0.0, 100, 500)] * 8, until=0.05, lanes=FULL * 2)
    serve(made, *[(0.05, 100, 5)] * 4, until=0.1)

    assert (total(made, "rejected"), of(made, "in_flight")) == (0, 4)


def test_prompts_of_background_wait_for_those_of_others() -> None:
    made = fleet(of=profile(max_num_batched_tokens=400))
    serve(made, (0.0, 3000, 5), until=0.06, lanes=("background",))
    serve(made, (0.06, 700, 5), until=of(made, "step_end") + 0.001)

    assert (of(made, "step_prefill"), of(made, "step_background_prefill")) == (400, 0)
    made.advance(of(made, "step_end") + 0.001)
    assert (of(made, "step_prefill"), of(made, "step_background_prefill")) == (300, 0)
    made.advance(of(made, "step_end") + 0.001)
    assert of(made, "step_background_prefill") == 399


def test_background_joins_a_step_only_within_its_bound() -> None:
    # The standard one alone takes at most 0.011 and 10 us for each of 300 tokens. Four take 0.018 and more.
    made = fleet(background_step_s=0.0165)
    serve(made, *[(0.0, 100, 200)] * 4, until=2.0, lanes=[*FULL[:3], "standard"])
    said = report(made)

    assert said.itl_p99_s < 0.0165 * 1.05
    assert of(made, "paused") > 0
    made.advance(60.0)
    assert (total(made, "background_finished"), total(made, "finished")) == (3, 1)


def test_interactive_goes_before_standard_in_an_engine() -> None:
    made = fleet()
    serve(made, *[(0.0, 100, 50)] * 4, until=0.02)
    serve(made, (0.03, 100, 5), (0.04, 100, 5), until=0.05, lanes=("standard", "interactive"))
    first = made.memory.requests[int(of(made, "head"))]

    assert first["arrived"] == 0.04


def test_no_figure_of_other_requests_includes_background() -> None:
    made = fleet()
    lanes = ("background", "background", "standard", "interactive")
    serve(made, *[(0.0, 100, 20)] * 4, until=0.1, lanes=lanes)
    said = report(made)
    assert (said.running_requests, said.background_running_requests, said.ongoing_requests) == (2, 2, 4)
    assert said.running_tokens == said.background_running_tokens > 200
    assert (said.prompt_tokens_total, said.ttft_count) == (200, 2)
    # Steps are those of all lanes.
    assert said.step_prefill_tokens * said.steps == 400

    made.advance(5.0)
    said = report(made)
    assert (said.finished_requests_total, said.finished_prompt_tokens_total) == (2, 200)
    assert said.finished_generation_tokens_total == said.itl_count + 2 == 40
    assert [counted(made, each) for each in (TTFT, TTFT_INTERACTIVE, TTFT_BACKGROUND, E2E)] == [2, 1, 2, 2]
    assert counted(made, ITL) == 38
    assert total(made, "arrivals") == made.memory.windows["requests"][0] == 2


def test_background_moves_from_a_draining_replica_to_a_free_place() -> None:
    made = fleet(2, drain_move_after_s=0.0)
    serve(made, *[(0.0, 100, 200)] * 4, until=0.1, lanes=FULL)
    made.set_target(1)
    made.settle()

    assert (of(made, "background"), of(made, "background", 1), total(made, "moves")) == (4, 0, 2)
    made.settle()
    assert made.draining == 0


@pytest.mark.parametrize("lane", ["interactive", "standard"])
def test_one_lane_alone_is_served_as_without_lanes(lane: str) -> None:
    requests = [(0.05 * number, 50 + 37 * number % 900, 1 + number % 40) for number in range(200)]
    made, other = fleet(2), fleet(2)
    serve(made, *requests, until=10.0)
    other.take(chunk(*requests, lanes=[lane] * 200), 0, 10.0)  # type: ignore[list-item]
    other.advance(10.0)

    assert (made.memory.histograms[:TTFT_INTERACTIVE] == other.memory.histograms[:TTFT_INTERACTIVE]).all()
