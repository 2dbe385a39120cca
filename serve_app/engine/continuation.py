"""How an engine goes on with a sequence that another engine began.

vLLM can go on with a sequence whose tokens it has generated before: it does so after a preemption. The
scheduler then keeps prompt and outputs apart, and so do penalties, grammars and budgets. But a request from
outside always begins at its prompt. So a continued request carries its delivered tokens at the end of its
prompt, and their number under the key `DELIVERED`. In the engine core, a scheduler and a worker extension,
which vLLM lets others provide, turn these tokens into outputs again. `advance` brings the front end's state
of the sequence to the same place.
"""

from __future__ import annotations

import logging
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.outputs import RequestOutput
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request

from serve_app.patches.vllm import split_prompts_in_workers

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("ray.serve")

DELIVERED = "tideserve_delivered"
"""The key in `SamplingParams.extra_args` of how many tokens at the prompt's end are outputs."""


def let_core_continue(config: VllmConfig) -> None:
    """Have the engine core of `config` go on with sequences of other engines.

    Nothing is changed where another scheduler or worker extension has been configured; `core_continues` then
    returns False.
    """
    scheduler, parallel = config.scheduler_config, config.parallel_config
    if scheduler.scheduler_cls is not None or parallel.worker_extension_cls:
        logger.warning(
            "This engine cannot go on with the streams of one that was lost: it has a scheduler_cls or a "
            "worker_extension_cls of its own."
        )
        return
    scheduler.scheduler_cls = _SCHEDULERS[bool(scheduler.async_scheduling)]
    if not config.use_v2_model_runner:  # the second model runner receives prompts and outputs apart
        parallel.worker_extension_cls = _path(ContinuingWorker)


def core_continues(config: VllmConfig) -> bool:
    """Return whether the engine core of `config` goes on with sequences of other engines."""
    return config.scheduler_config.scheduler_cls in _SCHEDULERS.values()


def delivered_count(params: Any) -> int:
    """Return how many tokens at the end of a request's prompt are outputs, by its sampling parameters."""
    extra = params.extra_args if params is not None else None
    return int(extra.get(DELIVERED, 0)) if extra else 0


class ContinuingScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler that waits for each step's result, for continued sequences too."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        return _separate_outputs(self, super().schedule(*args, **kwargs))


class ContinuingAsyncScheduler(AsyncScheduler):  # type: ignore[misc]
    """vLLM's scheduler that plans a step while the previous one runs, for continued sequences too."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        return _separate_outputs(self, super().schedule(*args, **kwargs))


class ContinuingWorker:
    """A worker extension without methods: because of it, every worker imports this module."""


split_prompts_in_workers(delivered_count)


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_SCHEDULERS = {False: _path(ContinuingScheduler), True: _path(ContinuingAsyncScheduler)}
"""By whether scheduling is asynchronous."""


def _separate_outputs(scheduler: Scheduler, step: SchedulerOutput) -> SchedulerOutput:
    # Not at a request's arrival: until a request is scheduled, vLLM takes all tokens that it finds in its
    # prefix cache for prompt. And a grammar is certainly compiled only when its request is scheduled.
    for data in step.scheduled_new_reqs:
        request = scheduler.requests[data.req_id]
        count = delivered_count(request.sampling_params)
        if count and not request.num_output_tokens:
            _split_request(request, count, scheduler)
            if scheduler.use_v2_model_runner:
                data.prompt_token_ids = request.prompt_token_ids  # `data` also has all tokens
    return step


def _split_request(request: Request, count: int, scheduler: Scheduler) -> None:
    """Turn the last `count` tokens of a prompt into outputs, one by one, as if they were being generated."""
    delivered = request.prompt_token_ids[-count:]
    request.prompt_token_ids = request.prompt_token_ids[:-count]
    request.num_prompt_tokens -= count
    del request._all_token_ids[-count:]  # the hashes of the blocks stay: the tokens are the same
    for token in delivered:
        request._all_token_ids.append(token)
        request._output_token_ids.append(token)
        if not scheduler.structured_output_manager.accept_tokens(request, [token]):
            # The request ends with an error in this step, like one whose grammar does not compile.
            scheduler.grammar_compile_error_reqs.add(request.request_id)
            request._output_token_ids[:] = delivered
            request._all_token_ids[:] = [*request.prompt_token_ids, *delivered]
            break


def advance(
    state: Any, request: Any, delivered: list[int], tokens_an_output: int, max_model_len: int
) -> list[RequestOutput]:
    """Bring the front end's `state` of a new sequence to the end of the `delivered` tokens.

    `request` goes to the engine core afterwards, with these tokens at the end of its prompt. If they end the
    answer, the core generates one superfluous token.

    Returns:
        The outputs that vLLM would have made of the tokens. The last one is finished if they end the answer.
    """
    outputs: list[RequestOutput] = []
    reason, stopped_by = _end_of(request, delivered, max_model_len)
    state.stream_interval, interval = 1, state.stream_interval
    for start in range(0, len(delivered), tokens_an_output):
        tokens = delivered[start : start + tokens_an_output]
        last = start + len(tokens) == len(delivered)
        stop = state.detokenizer.update(tokens, last and reason is FinishReason.STOP)
        if stop:
            last, reason, stopped_by = True, FinishReason.STOP, stop
        if state.logprobs_processor.logprobs is not None:
            state.logprobs_processor._update_sample_logprobs(_unknown_logprobs(tokens))
        ending = (reason, stopped_by) if last else (None, None)
        outputs.append(state.make_request_output(tokens, None, *ending))
        if last:
            break
    state.stream_interval = interval
    state.sent_tokens_offset = state.detokenizer.num_output_tokens()
    ended = outputs[-1].outputs[0].finished()
    if ended and state.parent_req is not None:
        state.parent_req.child_requests.add(state.request_id)  # the core's superfluous token ends it again
    _lengthen_prompt(request, state, delivered[:-1] if ended else delivered)
    if ended:
        request.sampling_params.max_tokens = len(delivered)
    return outputs


def _lengthen_prompt(request: Any, state: Any, delivered: list[int]) -> None:
    request.prompt_token_ids = [*request.prompt_token_ids, *delivered]
    request.sampling_params = params = copy(request.sampling_params)
    params.extra_args = {DELIVERED: len(delivered)}
    state.prompt_len += len(delivered)  # the core prefills these tokens and caches them


def _end_of(
    request: Any, delivered: list[int], max_model_len: int
) -> tuple[FinishReason | None, int | str | None]:
    """Return why the core ended the answer with the last delivered token, and the stop that matched."""
    sequence = Request.from_engine_core_request(request, None)
    sequence.append_output_token_ids(delivered)
    if not check_stop(sequence, max_model_len):
        return None, None
    return sequence.get_finished_reason(), sequence.stop_reason


def _unknown_logprobs(tokens: list[int]) -> LogprobsLists:
    """Return a row for each of `tokens`, for the decoding of later tokens. No client receives its figures."""
    ids = np.array(tokens)[:, None]
    return LogprobsLists(ids, np.zeros(ids.shape), np.zeros(len(tokens), dtype=int))
