"""vLLM's scheduler without a model: each step gives each sequence that is past its prompt one token."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from serve_app.engine.background_bound import BackgroundBound
from serve_app.engine.continuing_core import ContinuingAsyncScheduler, ContinuingScheduler
from serve_app.engine.sequence_lanes import LANE_KNOB, FairShare
from serve_app.settings.caller import Caller, Lane
from tests.engine.lane_watch import LaneWatch
from tests.engine.stub_engine_core import configured

BLOCK = 16


class SimulatedCore:
    """A scheduler and its steps.

    With asynchronous scheduling, a step is scheduled before the tokens of the step before it are known.
    The clock `now` stands still unless `step_s` gives the seconds of a step, from its tokens by sequence.
    """

    def __init__(self, blocks: int = 1000, asynchronous: bool = False, **model: Any) -> None:
        _, _, config = configured(max_model_len=2048, **model)
        config.cache_config.num_gpu_blocks = blocks
        config.cache_config.block_size = BLOCK
        config.scheduler_config.async_scheduling = asynchronous
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        scheduler = ContinuingAsyncScheduler if asynchronous else ContinuingScheduler
        self.scheduler: Any = scheduler(
            config,
            KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )
        self.lane_knobs: dict[Lane, float] = {}
        """The knobs that new sequences bring."""
        self.now = 0.0
        self.step_s: Callable[[dict[str, int]], float] = lambda tokens: 0.0
        self.scheduler.background_bound = BackgroundBound(lambda: self.now)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self._shares = FairShare()
        self._watch = LaneWatch(self.scheduler, self.report)
        # A step that is scheduled ahead may lack sequences that the step before ends.
        self._watched = not asynchronous and config.scheduler_config.policy == "priority"
        self._in_flight: deque[tuple[SchedulerOutput, list[bool]]] = deque()
        self._ahead = int(asynchronous)
        self.outputs: dict[str, list[int]] = {}
        """The tokens of each sequence so far."""
        self.computed: dict[str, int] = {}
        """The computed prompt tokens of each sequence, once the front end has been told."""

    def send(
        self, name: str, lane: Lane, prompt: int = 20, output: int = 1000, key: str = "", adapter: int = 0
    ) -> Request:
        """A sequence of a lane arrives. `adapter` is the number of its adapter; 0 for none."""
        charge = self._shares.charge(Caller(key, lane), prompt, output)
        extra = {LANE_KNOB: self.lane_knobs[lane]} if lane in self.lane_knobs else None
        message = EngineCoreRequest(
            request_id=name,
            prompt_token_ids=[len(self.outputs) % 1000] * prompt,  # no two share a block
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=output, ignore_eos=True, extra_args=extra),
            pooling_params=None,
            arrival_time=float(len(self.outputs)),
            lora_request=LoRARequest(f"adapter-{adapter}", adapter, "/nowhere") if adapter else None,
            cache_salt=None,
            data_parallel_rank=None,
            priority=charge.priority,
        )
        request = Request.from_engine_core_request(message, self.hasher)
        self.take(request)
        return request

    def take(self, request: Request) -> None:
        """A sequence arrives as vLLM's front end has made it."""
        self.outputs[request.request_id] = []
        self.scheduler.add_request(request)

    def sample(self, request: Request) -> int:
        """Return the next token of a sequence."""
        return 7

    def emit(self, outputs: EngineCoreOutputs) -> None:
        """Receive the outputs of a step, as vLLM's front end gets them."""

    def report(self, fault: str) -> None:
        """Receive what must not be in a step."""
        raise AssertionError(fault)

    def step(self) -> dict[str, int]:
        """Schedule a step. Returns its tokens by sequence."""
        self._watch.before()
        step = self.scheduler.schedule()
        if self._watched:
            self._watch.check(step.num_scheduled_tokens)
        # Later, the sequence may already be scheduled for its next chunk.
        names = step.num_scheduled_tokens
        self._in_flight.append((step, [not self.scheduler.requests[name].is_prefill_chunk for name in names]))
        while len(self._in_flight) > self._ahead:
            ran, samples = self._in_flight.popleft()
            self.now += self.step_s(ran.num_scheduled_tokens)
            self._finish(ran, samples)
        tokens: dict[str, int] = step.num_scheduled_tokens
        return tokens

    def steps(self, count: int) -> None:
        """Schedule several steps."""
        for _ in range(count):
            self.step()

    def abort(self, names: Sequence[str]) -> None:
        """The clients of these sequences leave."""
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    @property
    def running(self) -> set[str]:
        """The sequences in the batch."""
        return {request.request_id for request in self.scheduler.running}

    def _finish(self, step: SchedulerOutput, samples: list[bool]) -> None:
        names = list(step.num_scheduled_tokens)
        there = [name in self.scheduler.requests for name in names]
        requests = self.scheduler.requests
        tokens = [
            [self.sample(requests[name])] if one and sample else []
            for name, one, sample in zip(names, there, samples, strict=True)
        ]
        result = ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, tokens)
        for output in self.scheduler.update_from_output(step, result).values():
            self.emit(output)
            for one in output.outputs:
                self.outputs[one.request_id] += one.new_token_ids
                if one.prefill_stats is not None:
                    assert one.request_id not in self.computed
                    self.computed[one.request_id] = one.prefill_stats.num_computed_tokens


def flood(core: SimulatedCore, count: int = 64, lane: Lane = "background", prompt: int = 20) -> None:
    """So many sequences of a lane arrive."""
    for number in range(count):
        core.send(f"{lane}-{number}", lane, prompt)
