"""A stub of vLLM's engine core: each step makes up one token for every running request, and no model runs.

vLLM's core process, its sockets and its messages stay as they are. Only named as the executor class
(`distributed_executor_backend`), which is enough below vLLM's own server and below Tideserve.
"""

import time
from concurrent.futures import Future
from typing import Any

from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

_STEP_S = 0.010
_PRIME = 7919
"""More than a vocabulary of words is not a multiple of it: neighbouring streams get different words."""


class StubExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM has no types
    """Loads the model as ever, so that all figures of the engine are real ones, and never runs it."""

    def _init_executor(self) -> None:
        super()._init_executor()
        # In the core's process alone: front ends are to believe in the scheduler that they have asked for.
        self.scheduler_config.scheduler_cls = f"{__name__}.{StubScheduler.__name__}"

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """Do nothing: the scheduler makes the tokens up."""
        return _done() if non_block else EMPTY_MODEL_RUNNER_OUTPUT

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Do nothing."""
        return _done() if non_block else EMPTY_MODEL_RUNNER_OUTPUT

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """Return False: there is nothing that a step could overlap with."""
        return False


class StubScheduler(Scheduler):  # type: ignore[misc]
    """Runs every request at once, with a step of all of them every so often.

    The newest request with a `seed` sets the time between two steps, in microseconds: no seed is needed
    where nothing is drawn. A step that is late is not made up for.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._words = _words(cached_tokenizer_from_config(self.vllm_config.model_config))
        self._step_s, self._due, self._steps = _STEP_S, 0.0, 0

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Wait until a step is due, and plan one token for each request."""
        self.finished_req_ids: set[str] = set()
        while self.waiting and len(self.running) < self.max_num_running_reqs:
            self._begin(self.waiting.pop_request())
        step = SchedulerOutput.make_empty()
        if self.running:
            now = time.monotonic()
            if now < self._due:
                time.sleep(self._due - now)
            self._due = max(self._due, now) + self._step_s
            step.num_scheduled_tokens = dict.fromkeys([each.request_id for each in self.running], 1)
            step.total_num_scheduled_tokens = len(self.running)
        return step

    def _begin(self, request: Request) -> None:
        request.status = RequestStatus.RUNNING
        request.prefill_stats.set(request.num_prompt_tokens, 0, 0)
        if self.log_stats:
            request.record_event(EngineCoreEventType.SCHEDULED)
        if request.sampling_params.seed:
            self._step_s = request.sampling_params.seed / 1e6
        self.running.append(request)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Make up a token for each running request; `max_tokens` counts down to its end."""
        words, at = self._words, self._steps
        self._steps += 1
        outputs: list[EngineCoreOutput] = []
        ended: list[str] = []
        for request in self.running:
            at += _PRIME
            output = EngineCoreOutput(request.request_id, [words[at % len(words)]])
            if request.prefill_stats is not None:
                output.prefill_stats, output.events = request.take_prefill_stats(), request.take_events()
            request.max_tokens -= 1
            if request.max_tokens <= 0:
                output.finish_reason = FinishReason.LENGTH
                ended.append(request.request_id)
            outputs.append(output)
        if ended:
            self.finish_requests(ended, RequestStatus.FINISHED_LENGTH_CAPPED)
        return {0: EngineCoreOutputs(outputs=outputs, scheduler_stats=self.make_stats())}


def _done() -> Future[ModelRunnerOutput]:
    future: Future[ModelRunnerOutput] = Future()
    future.set_result(EMPTY_MODEL_RUNNER_OUTPUT)
    return future


def _words(tokenizer: Any) -> list[int]:
    """Tokens that are one blank and then letters, so that a reader of bytes counts tokens by their blanks."""
    return [
        token
        for text, token in tokenizer.get_vocab().items()
        if text[0] in "Ġ▁" and text[1:].isascii() and text[1:].isalpha()
    ]
