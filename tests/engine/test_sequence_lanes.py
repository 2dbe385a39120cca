from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.metrics.stats import IterationStats, PrefillStats

from serve_app.engine.sequence_lanes import LANE_KNOB, SequenceLanes
from serve_app.settings.caller import Caller, Lane


class Processor:
    """A fake of vLLM's output processor: it counts a token for each output."""

    def __init__(self, lanes: SequenceLanes) -> None:
        self.lanes = lanes
        lanes.divide_statistics(SimpleNamespace(output_processor=self))

    def process_outputs(self, outputs: list[Any], at: float, iteration: IterationStats) -> Any:
        iteration.num_generation_tokens += len(outputs)
        return SimpleNamespace(request_outputs=[], reqs_to_abort=[output.request_id for output in outputs])

    def step(self, *names: str) -> tuple[dict[Lane, int], set[str]]:
        """The tokens of a step by lane, and the sequences whose results came back."""
        iteration = IterationStats()
        done = self.process_outputs([SimpleNamespace(request_id=name) for name in names], 1.0, iteration)
        parts = self.lanes.take(iteration)
        return {lane: part.num_generation_tokens for lane, part in parts.items()}, set(done.reqs_to_abort)


def begin(lanes: SequenceLanes, name: str, lane: Lane) -> tuple[Any, Any]:
    state = SimpleNamespace(request_id=name, prompt_len=10, is_prefilling=True, stats=None)
    return state, lanes.begin(Caller(lane=lane), SimpleNamespace(sampling_params=None), state)


def test_results_of_a_step_are_divided_by_lane() -> None:
    lanes = SequenceLanes()
    processor = Processor(lanes)
    for name, lane in (("a", "interactive"), ("b", "background"), ("c", "background")):
        begin(lanes, name, lane)  # type: ignore[arg-type]

    assert processor.step("a", "b", "c") == ({"interactive": 1, "background": 2}, {"a", "b", "c"})
    assert processor.step("a") == ({"interactive": 1}, {"a"})


def test_statistics_of_all_lanes_add_up_to_vllms_own() -> None:
    lanes, parts = SequenceLanes(), {"interactive": IterationStats(), "background": IterationStats()}
    total = IterationStats()
    for count, part in enumerate(parts.values(), 1):
        part.num_generation_tokens, part.prompt_token_stats.total = count, 10 * count
        part.inter_token_latencies_iter.append(0.5 * count)
    began = total.iteration_timestamp

    lanes.fill(total, parts)
    lanes.fill(total, {"standard": total})
    lanes.fill(None, parts)

    assert (total.num_generation_tokens, total.num_prompt_tokens) == (3, 30)
    assert (total.inter_token_latencies_iter, total.iteration_timestamp) == ([0.5, 1.0], began)


@pytest.mark.parametrize("knob", [None, 0.02])
@pytest.mark.parametrize("given", [None, {LANE_KNOB: 9.0, "mine": 1}])
def test_sequence_brings_the_knob_of_its_lane_and_no_value_of_its_client(
    given: dict[str, Any] | None, knob: float | None
) -> None:
    message = SimpleNamespace(sampling_params=SamplingParams(extra_args=given))
    state = SimpleNamespace(request_id="a", prompt_len=10, is_prefilling=True, stats=None)
    SequenceLanes().begin(Caller(lane="standard"), message, state, knob)

    sent = message.sampling_params.extra_args
    assert (sent or {}).get(LANE_KNOB) == knob
    assert (sent or {}).get("mine") == (given or {}).get("mine")


def test_sequences_of_one_lane_stay_together() -> None:
    lanes = SequenceLanes()
    processor = Processor(lanes)
    assert processor.step("a", "b") == ({"standard": 2}, {"a", "b"})
    chat = begin(lanes, "chat", "interactive")
    begin(lanes, "mail", "background")
    lanes.end(*chat)

    assert processor.step("mail", "mail") == ({"background": 2}, {"mail"})


def test_key_pays_for_a_prefill_that_its_client_left() -> None:
    lanes = SequenceLanes()
    processor = Processor(lanes)

    def priority(key: str) -> int:
        message = SimpleNamespace(sampling_params=None)
        state = SimpleNamespace(request_id=f"next of {key}", prompt_len=10, is_prefilling=True, stats=None)
        lanes.begin(Caller(key), message, state)
        return int(message.priority)

    lanes.begin(
        Caller("busy"), SimpleNamespace(sampling_params=None), SimpleNamespace(request_id="a", prompt_len=1)
    )
    for key in ("computed", "waited"):
        state = SimpleNamespace(request_id=key, prompt_len=900, is_prefilling=True, stats=None)
        lanes.end(state, lanes.begin(Caller(key), SimpleNamespace(sampling_params=None), state))
    told = [
        SimpleNamespace(request_id=key, prefill_stats=PrefillStats(num_computed_tokens=tokens))
        for key, tokens in (("computed", 320), ("waited", 0), ("computed", 320))
    ]
    processor.process_outputs(told, 1.0, IterationStats())

    assert priority("computed") - priority("waited") == 320
