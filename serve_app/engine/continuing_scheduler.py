"""vLLM's schedulers, for the process of an engine core that goes on with other engines' sequences."""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from serve_app.engine.continued_core import delivered_count


class ContinuingScheduler(Scheduler):  # type: ignore[misc]
    """The scheduler that waits for each step's result."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Plan a step. What begins with it, and has been begun elsewhere, stands at its last token then."""
        return _with_outputs(self, super().schedule(*args, **kwargs))


class ContinuingAsyncScheduler(AsyncScheduler):  # type: ignore[misc]
    """The scheduler that plans a step while the one before still runs."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Plan a step. What begins with it, and has been begun elsewhere, stands at its last token then."""
        return _with_outputs(self, super().schedule(*args, **kwargs))


def _with_outputs(scheduler: Scheduler, step: SchedulerOutput) -> SchedulerOutput:
    # Not when requests arrive: until they are scheduled, vLLM holds that all of what it finds in its prefix
    # cache is prompt. And only then is a grammar sure to be compiled.
    for data in step.scheduled_new_reqs:
        request = scheduler.requests[data.req_id]
        count = delivered_count(request.sampling_params)
        if count and not request.num_output_tokens:
            _take_apart(request, count, scheduler)
            if scheduler.use_v2_model_runner:
                data.prompt_token_ids = request.prompt_token_ids  # it has all tokens, too
    return step


def _take_apart(request: Request, count: int, scheduler: Scheduler) -> None:
    """Make the last `count` tokens of a prompt outputs, one by one, as if they were just being generated."""
    delivered = request.prompt_token_ids[-count:]
    request.prompt_token_ids = request.prompt_token_ids[:-count]
    request.num_prompt_tokens -= count
    del request._all_token_ids[-count:]  # their hashes stay: they are of the same tokens
    for token in delivered:
        request._all_token_ids.append(token)
        request._output_token_ids.append(token)
        if not scheduler.structured_output_manager.accept_tokens(request, [token]):
            # With the step's result the request ends with an error, like one whose grammar does not compile.
            scheduler.grammar_compile_error_reqs.add(request.request_id)
            request._output_token_ids[:] = delivered
            request._all_token_ids[:] = [*request.prompt_token_ids, *delivered]
            break
