"""The lane of each sequence of an engine, in vLLM's front end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import IterationStats

from serve_app.engine.fair_share import LANE_KNOB, Charge, FairShare, used_tokens
from serve_app.patches.vllm import Method, wrap_method
from serve_app.settings.caller import ANYONE, LANES, Caller, Lane

_MOST_LEFT = 1024


class SequenceLanes:
    """Gives sequences their priorities, and divides the statistics of a step by lane.

    vLLM's statistics of a step have one list of latencies for all sequences. So the outputs of each lane are
    processed with statistics of their own. While all sequences are in one lane, nothing is sorted.
    """

    def __init__(self) -> None:
        self._shares = FairShare()
        self._lanes: dict[str, Lane] = {}
        self._unfinished = dict.fromkeys(LANES, 0)
        self._left: dict[str, Charge] = {}
        """The sequences that ended within their prefill, until the engine core tells what it computed."""
        self._iteration: IterationStats | None = None
        """vLLM's own statistics of the step whose `_parts` are kept."""
        self._parts: dict[Lane, IterationStats] = {}

    def lane_of(self, sequence: str) -> Lane:
        """Return the lane of an unfinished sequence, by vLLM's id."""
        return self._lanes.get(sequence, ANYONE.lane)

    def begin(self, caller: Caller, request: Any, state: Any, lane_knob: float | None = None) -> Charge:
        """Set the priority of a sequence that vLLM has registered. Call `end` with the result.

        Args:
            caller: Whose sequence it is. A `priority` in the client's body or headers does not count.
            request: The message to the engine core, which has not been sent yet.
            state: The front end's state of the sequence.
            lane_knob: What the knobs say of its lane; see `Knobs.lane_knob`. None changes nothing.
        """
        params = request.sampling_params
        most = 0 if params is None else params.max_tokens or 0
        charge = self._shares.charge(caller, state.prompt_len or 0, most)
        request.priority = charge.priority
        if params is not None and (lane_knob is not None or LANE_KNOB in (params.extra_args or ())):
            # Replaces a value of the client.
            params.extra_args = {**(params.extra_args or {}), LANE_KNOB: lane_knob}
        self._lanes[state.request_id] = caller.lane
        self._unfinished[caller.lane] += 1
        return charge

    def end(self, state: Any, charge: Charge) -> None:
        """Note that a sequence has ended, for any reason."""
        charge.settle(*used_tokens(state))
        if state.is_prefilling:
            if len(self._left) >= _MOST_LEFT:  # the core has refused some, and tells nothing of those
                self._left.pop(next(iter(self._left)))
            self._left[state.request_id] = charge
        self._unfinished[self._lanes.pop(state.request_id)] -= 1

    def divide_statistics(self, engine: AsyncLLM) -> None:
        """Have the front end of `engine` process the outputs of each lane with its own statistics."""
        wrap_method(engine.output_processor, "process_outputs", self._divided)

    def take(self, iteration: IterationStats | None) -> Mapping[Lane, IterationStats]:
        """Return the statistics of the last step by lane. `iteration` is vLLM's own."""
        parts, self._parts = self._parts, {}
        return parts or ({} if iteration is None else {ANYONE.lane: iteration})

    @staticmethod
    def fill(iteration: IterationStats | None, parts: Mapping[Lane, IterationStats]) -> None:
        """Add the statistics of all lanes to vLLM's own, which other loggers read after this one."""
        for part in parts.values():
            if iteration is not None and part is not iteration:
                _add(iteration, part)

    def _divided(self, process: Method) -> Method:
        def wrapped(outputs: list[Any], at: Any, iteration: IterationStats | None, **more: Any) -> Any:
            for output in outputs if self._left else ():
                charge = self._left.pop(output.request_id, None)
                stats = getattr(output, "prefill_stats", None)  # which not all releases have
                if charge is not None and stats is not None:
                    charge.add(stats.num_computed_tokens)
            if iteration is None:
                return process(outputs, at, iteration, **more)
            if (
                iteration is not self._iteration
            ):  # vLLM processes the outputs of a large step in several calls
                self._iteration, self._parts = iteration, {}
            present = [lane for lane, count in self._unfinished.items() if count]
            by_lane: dict[Lane, list[Any]] = {}
            if len(present) < 2:
                by_lane[present[0] if present else ANYONE.lane] = outputs
            else:
                for output in outputs:
                    by_lane.setdefault(self.lane_of(output.request_id), []).append(output)
            done = [
                process(some, at, self._parts.setdefault(lane, IterationStats()), **more)
                for lane, some in by_lane.items()
            ]
            for other in done[1:]:
                done[0].request_outputs.extend(other.request_outputs)
                done[0].reqs_to_abort.extend(other.reqs_to_abort)
            return done[0]

        return wrapped


def _add(total: Any, part: Any) -> None:
    """Add counts, lists, and records of counts. The time of a step is a float, and stays."""
    for name, value in vars(part).items():
        if isinstance(value, list):
            getattr(total, name).extend(value)
        elif isinstance(value, int):
            setattr(total, name, getattr(total, name) + value)
        elif hasattr(value, "__dict__"):
            _add(getattr(total, name), value)
