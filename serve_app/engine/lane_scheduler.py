"""Lanes in vLLM's scheduler, in the process of the engine core.

A sequence's lane is known from its priority (`sequence_lanes`). vLLM itself lets the smallest priority run
first and preempts the largest. This module adds:

- A waiting sequence of another lane takes the place of a running `background` sequence in the next step. The
  preempted sequence waits, and continues later: the prefix cache has most of its tokens.
- A waiting sequence of a key below its fair share takes the place of a sequence of the key furthest above its
  share, in the same lane (not in `background`).
- A step that prefills a prompt of another lane runs no `background` sequence.
- The time of a step that runs `background` beside other lanes is bounded (`background_bound`).
- `standard` gets a share of the batch while `interactive` sequences wait too.
- The engine core ends with its replica.
- The front end is told how many tokens were computed for a sequence that ends within its prefill.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import PriorityRequestQueue, RequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from serve_app.engine.background_bound import BackgroundBound
from serve_app.engine.sequence_lanes import BACKGROUND, LANE_KNOB, lane_of
from serve_app.processes import end_with_parent
from serve_app.settings.caller import Lane
from serve_app.settings.knobs import Knobs

_ADMITTED = (RequestStatus.RUNNING, RequestStatus.WAITING_FOR_REMOTE_KVS)
_STANDARD_SHARE: float = Knobs.model_fields["standard_share"].default


class LaneQueue(RequestQueue):  # type: ignore[misc]  # vLLM has no types
    """vLLM's waiting list with a queue for each lane."""

    def __init__(self) -> None:
        self.interactive = PriorityRequestQueue()
        self.standard = PriorityRequestQueue()
        self.background = PriorityRequestQueue()
        self.hold_background = False
        """Whether the next step takes no sequence of `background`."""
        self._lanes: dict[Lane, PriorityRequestQueue] = {
            "interactive": self.interactive,
            "standard": self.standard,
            "background": self.background,
        }
        self.standard_share = _STANDARD_SHARE
        """The share of `standard` in the places that are given away while `interactive` waits too, 0 to 1."""
        self._owed = 0.0
        """The places that `standard` is behind its share; negative if it is ahead. The queue of the ingress
        counts in the same way (`FairQueue`)."""
        self._popped: tuple[Request, float] | None = None
        """The last sequence that vLLM has popped, and what `_owed` becomes if vLLM admits it."""

    def charge_admitted(self) -> None:
        """Charge the last popped sequence for its place, if it has one. vLLM only passes over others."""
        if self._popped is not None and self._popped[0].status in _ADMITTED:
            self._owed = self._popped[1]
        self._popped = None

    def _next(self) -> PriorityRequestQueue:
        self.charge_admitted()
        if self.standard and (not self.interactive or self._owed > 0):
            return self.standard
        return self.interactive or self.background

    def peek_request(self) -> Request:
        return self._next().peek_request()

    def pop_request(self) -> Request:
        queue, owed = self._next(), self._owed
        if self.interactive and self.standard:
            owed += self.standard_share - (queue is self.standard)
        elif queue is not self.background:
            owed = 0.0  # a lane that waits for nothing saves up no share
        request = queue.pop_request()
        self._popped = request, owed
        return request

    def add_request(self, request: Request) -> None:
        self._lanes[lane_of(request.priority)].add_request(request)

    prepend_request = add_request

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        self._lanes[lane_of(request.priority)].remove_request(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        removed = set(requests)
        for queue in self._lanes.values():
            queue.remove_requests(removed)

    def foreground(self) -> Iterator[Request]:
        """Yield the sequences of all lanes but `background`, in the order of their priorities."""
        return chain(self.interactive, self.standard)

    def __bool__(self) -> bool:
        """Return whether the step may take a sequence."""
        return bool(self.interactive or self.standard or (self.background and not self.hold_background))

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __iter__(self) -> Iterator[Request]:
        return chain(self.foreground(), self.background)


class LaneScheduling(Scheduler):  # type: ignore[misc]
    """A scheduler's part that knows lanes. Without the policy `priority`, it changes nothing."""

    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        end_with_parent()
        self._by_lane = self.policy == SchedulingPolicy.PRIORITY
        self._background: set[str] = set()
        """The unfinished sequences of `background`."""
        self._unanswered: list[Request] = []
        """Sequences without an output that have ended since the last step."""
        self.background_bound = BackgroundBound()
        if self._by_lane:
            self.waiting = LaneQueue()

    def add_request(self, request: Request) -> None:
        if self._by_lane:
            self._take_knob(request)
            if _is_background(request):
                self._background.add(request.request_id)
        super().add_request(request)

    def _take_knob(self, request: Request) -> None:
        """Take over what the knobs in force say of the sequence's lane."""
        params = request.sampling_params
        knob = None if params is None else (params.extra_args or {}).get(LANE_KNOB)
        lane = lane_of(request.priority)
        if knob is not None and lane == "background":
            self.background_bound.step_s = knob
        elif knob is not None and lane == "standard":
            self.waiting.standard_share = knob

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._background.discard(request.request_id)
        return super()._free_request(request, *args, **kwargs)

    def finish_requests(self, *args: Any, **kwargs: Any) -> list[Request]:
        finished: list[Request] = super().finish_requests(*args, **kwargs)
        self._unanswered += [request for request in finished if request.prefill_stats is not None]
        return finished

    def update_from_output(self, *args: Any, **kwargs: Any) -> dict[int, EngineCoreOutputs]:
        """Add what was computed for sequences that ended within their prefill.

        vLLM's front end ignores outputs of aborted sequences. A step follows each abort, even without other
        sequences, because the workers must forget the sequence.
        """
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(*args, **kwargs)
        for request in self._unanswered:
            stats = request.take_prefill_stats()
            stats.num_computed_tokens = max(0, request.num_computed_tokens - stats.num_cached_tokens)
            told = EngineCoreOutput(request.request_id, [], prefill_stats=stats)
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(told)
        self._unanswered.clear()
        return outputs

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        if not self._by_lane:
            return super().schedule(*args, **kwargs)
        others: list[Request] = []
        if self.pause_state.name == "UNPAUSED":
            if self._background:
                self._yield_to_other_lanes()
                others = self._beside_background()
            else:
                self._make_way()
        limit = self.background_bound.begin_step(bool(others))
        if limit is None:
            return super().schedule(*args, **kwargs)
        limit += -limit % (1 + self.num_spec_tokens)  # whole decodes: fewer drafts may leave the CUDA graph
        most = self.max_num_scheduled_tokens
        # vLLM gives tokens to the other lanes first, because `running` is sorted.
        self.max_num_scheduled_tokens = min(most, sum(map(_new_tokens, others)) + limit)
        try:
            step = super().schedule(*args, **kwargs)
        finally:
            self.max_num_scheduled_tokens = most
        tokens = step.num_scheduled_tokens
        self.background_bound.end_step(sum(tokens[name] for name in tokens if name in self._background))
        return step

    def _update_after_schedule(self, *args: Any) -> None:
        if self._by_lane:
            self.waiting.charge_admitted()
        super()._update_after_schedule(*args)

    def _beside_background(self) -> list[Request]:
        """Return the running sequences of other lanes if the step may have `background` beside them."""
        if self.waiting.hold_background or not all(map(_is_background, self.kv_holding_waiting)):
            return []
        return [request for request in self.running if not _is_background(request)]

    def _yield_to_other_lanes(self) -> None:
        """Prepare a step: the other lanes get the sequences, the KV blocks and the tokens that they need."""
        prefills = any(request.is_prefill_chunk and not _is_background(request) for request in self.running)
        prefills |= self._make_way()
        running = [request for request in self.running if _is_background(request)]
        self.waiting.hold_background = prefills
        if not running:
            return
        # vLLM gives the step's tokens in this order.
        self.running.sort(key=_is_background)
        if prefills:
            for request in running:
                if request.lora_request is not None and self._request_blocks_can_be_freed(request):
                    # vLLM ends if more adapters than `max_loras` are running. It looks at a sequence that
                    # comes from the queue, and not at one that is left out of a step.
                    self._preempt(request)
                else:
                    request.next_decode_eligible_step = self.current_step + 2  # leaves out this step

    def _make_way(self) -> bool:
        """Preempt sequences for the step's prompts of all lanes but `background`.

        Returns whether there are such prompts.
        """
        free = self.max_num_active_reqs - len(self.running) - self.num_waiting_for_streaming_input
        blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
        tokens = self.max_num_scheduled_tokens
        prefills = False
        granted, full = set[int](), dict[Lane, set[int]]()
        for request in self.waiting.foreground():
            if not self._handle_blocked_waiting_request(request):
                continue  # its grammar is not compiled yet
            if (adapter := _adapter_of(request)) in full.get(lane_of(request.priority), ()):
                continue
            victims = [running for running in self.running if _makes_way(running, request)]
            if adapter:
                kept = granted | {_adapter_of(each) for each in self.running if not _makes_way(each, request)}
                if adapter not in kept and len(kept - {0}) >= self.lora_config.max_loras:
                    full.setdefault(lane_of(request.priority), set()).add(
                        adapter
                    )  # and fewer make way for others
                    continue  # vLLM passes over it too
                granted.add(adapter)
            if free < 1 and not victims:
                break
            prefills = True
            # Without a victim, vLLM alone decides whether there is space.
            needed, new_tokens = self._needs(request) if victims else (0, 0)
            while victims:
                if free >= 1 and blocks >= needed:
                    if self._has_place(adapter, granted - {adapter}):
                        break
                    victims = [each for each in victims if _adapter_of(each)]
                    if not victims:
                        break
                victim = max(victims)  # vLLM's order of preemption
                victims.remove(victim)
                if not self._request_blocks_can_be_freed(victim):
                    continue
                before = self.kv_cache_manager.block_pool.get_num_free_blocks()
                self._preempt(victim)
                free += 1
                blocks += self.kv_cache_manager.block_pool.get_num_free_blocks() - before
            free, blocks, tokens = free - 1, blocks - needed, tokens - new_tokens
            if blocks < 0 or tokens <= 0:
                break
        return prefills

    def _has_place(self, adapter: int, granted: set[int]) -> bool:
        """Return whether the step may run an adapter beside the `granted` ones and those that still run.

        Without such a place, vLLM would take back the preempted sequence, step after step.
        """
        others = (granted | {_adapter_of(each) for each in self.running}) - {0}
        return adapter in others | {0} or len(others) < self.lora_config.max_loras

    def _needs(self, request: Request) -> tuple[int, int]:
        """Return the KV blocks and the tokens that a waiting sequence needs beyond the prefix cache."""
        blocks, cached, *_ = self._get_local_prefix_cache_hit(request)
        tokens = min(request.num_tokens, self.max_model_len)
        needed = self.kv_cache_manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=tokens,
            new_computed_blocks=blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=cached,
            num_local_computed_tokens=cached,
            num_tokens_main_model=tokens,
            apply_admission_cap=True,
            prefill_end=tokens,
        )
        return needed + self.kv_cache_manager.watermark_blocks, tokens - cached

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._preempt_request(request, time.monotonic(), drop_stale_output=self.requires_kv_delivery)
        # The step may already take it back. Then the first model runner needs all its tokens again.
        self.prev_step_scheduled_req_ids.discard(request.request_id)


def _new_tokens(request: Request) -> int:
    """Return the tokens that vLLM schedules for a running sequence, drafts included."""
    return int(request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens)


def _makes_way(running: Request, waiting: Request) -> bool:
    """Return whether a running sequence may be preempted for a waiting one of another lane than `background`.

    Within a lane, the running sequence's key must be further ahead of its fair share than the tokens that the
    preemption may cost.
    """
    if _is_background(running):
        return True
    ahead = running.priority - waiting.priority
    return bool(
        ahead > running.num_computed_tokens and lane_of(running.priority) == lane_of(waiting.priority)
    )


def _adapter_of(request: Request) -> int:
    """Return the number that vLLM gives a sequence's adapter; 0 for none."""
    return 0 if request.lora_request is None else int(request.lora_request.lora_int_id)


def _is_background(request: Request) -> bool:
    return bool(request.priority >= BACKGROUND)
